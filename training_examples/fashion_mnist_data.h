/// Fashion-MNIST for C++ programs: reading its IDX files, and the order and augmentation of its batches.
#pragma once

#include <torch/torch.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fashion_mnist {

using torch::indexing::None;
using torch::indexing::Slice;

inline constexpr int64_t kClasses = 10;
inline constexpr int64_t kImageSize = 28;
inline constexpr const char* kRemedy =
    "; get Debian's package dataset-fashion-mnist (or reinstall it), or name a folder with the four files with --data";

/// Something the user can put right; its text is one sentence that says what and how.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Grey images, uint8 [N, 28, 28], and their classes, int64 [N].
struct Images {
  torch::Tensor pixels, labels;

  int64_t size() const { return labels.size(0); }
  Images first(int64_t count) const { return {pixels.slice(0, 0, count), labels.slice(0, 0, count)}; }
};

/// The content of a file, gzipped or not.
inline std::vector<uint8_t> read_file(const std::string& path) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) {
    throw UserError(path + ": cannot be opened" + kRemedy);
  }
  std::vector<uint8_t> content;
  std::vector<uint8_t> part(1 << 20);
  int count = 0;
  while ((count = gzread(file.get(), part.data(), static_cast<unsigned>(part.size()))) > 0) {
    content.insert(content.end(), part.begin(), part.begin() + count);
  }
  int error = Z_OK;
  const char* reason = gzerror(file.get(), &error);
  if (count < 0 || error != Z_OK) {
    throw UserError(path + ": truncated or damaged (" + reason + ")" + kRemedy);
  }
  return content;
}

/// An IDX file of bytes: 0, 0, type 8, the number of dimensions, each size as 4 bytes, most significant first.
inline torch::Tensor read_idx(const std::filesystem::path& folder, const std::string& name, size_t dimensions) {
  std::filesystem::path path = folder / (name + ".gz");
  if (!std::filesystem::exists(path) && std::filesystem::exists(folder / name)) {
    path = folder / name;
  }
  const std::vector<uint8_t> content = read_file(path);
  const size_t header = 4 + 4 * dimensions;
  if (content.size() < header || content[0] != 0 || content[1] != 0 || content[2] != 8 || content[3] != dimensions) {
    throw UserError(path.string() + ": not an IDX file of bytes in " + std::to_string(dimensions) + " dimensions" +
                    kRemedy);
  }
  std::vector<int64_t> shape;
  size_t bytes = 1;
  for (size_t at = 4; at < header; at += 4) {
    const uint32_t size = content[at] << 24U | content[at + 1] << 16U | content[at + 2] << 8U | content[at + 3];
    shape.push_back(size);
    bytes *= size;
  }
  if (content.size() != header + bytes) {
    throw UserError(path.string() + ": it holds " + std::to_string(content.size()) + " bytes, not " +
                    std::to_string(header + bytes) + kRemedy);
  }
  return torch::tensor(at::ArrayRef<uint8_t>(content.data() + header, bytes), torch::kUInt8).view(shape);
}

/// `part` is "train" or "t10k".
inline Images load(const std::filesystem::path& folder, const std::string& part) {
  Images images{read_idx(folder, part + "-images-idx3-ubyte", 3), read_idx(folder, part + "-labels-idx1-ubyte", 1)};
  if (images.pixels.size(1) != kImageSize || images.pixels.size(2) != kImageSize) {
    throw UserError((folder / part).string() + "-images: the images are not 28 by 28" + kRemedy);
  }
  if (images.pixels.size(0) != images.size() || images.size() == 0 || images.labels.max().item<int>() >= kClasses) {
    throw UserError((folder / part).string() + "-labels: not one label from 0 to 9 for each image" + kRemedy);
  }
  images.labels = images.labels.to(torch::kLong);
  return images;
}

/// Grey uint8 [N, H, W] to what the network takes: float [N, 3, H, W] in channels_last, the three channels equal.
inline torch::Tensor normalize(const torch::Tensor& pixels) {
  const torch::Tensor grey = (pixels.to(torch::kFloat) / 255 - 0.2860) / 0.3530;
  return grey.unsqueeze(-1).expand({-1, -1, -1, 3}).contiguous().permute({0, 3, 1, 2});
}

/// Training batches, each a function of the seed and the step alone: a run continues anywhere without stored state.
/// An epoch is a permutation of the images; those that do not fill a batch wait for the next epoch. Images are shifted
/// by up to two pixels (a random crop of the padded image) and mirrored at random.
class Batches {
 public:
  Batches(Images images, int64_t batch_size, uint64_t seed)
      : images_(std::move(images)), batch_size_(batch_size), seed_(seed) {
    if (batch_size > images_.size()) {
      throw UserError("--batch-size: " + std::to_string(batch_size) + " is more than the " +
                      std::to_string(images_.size()) + " training images; make it smaller");
    }
  }

  int64_t steps_per_epoch() const { return images_.size() / batch_size_; }

  std::pair<torch::Tensor, torch::Tensor> at(int64_t step) {
    const int64_t epoch = step / steps_per_epoch();
    if (epoch != epoch_) {
      order_ = torch::randperm(images_.size(), generator(2 * epoch), torch::kLong);
      epoch_ = epoch;
    }
    const int64_t start = step % steps_per_epoch() * batch_size_;
    const torch::Tensor chosen = order_.slice(0, start, start + batch_size_);
    return {normalize(augment(images_.pixels.index_select(0, chosen), step)), images_.labels.index_select(0, chosen)};
  }

 private:
  static constexpr int64_t kPadding = 2;

  torch::Tensor augment(const torch::Tensor& pixels, int64_t step) const {
    const at::Generator random = generator(2 * step + 1);
    const int64_t count = pixels.size(0);
    const torch::Tensor offsets = torch::randint(0, 2 * kPadding + 1, {2, count, 1}, random, torch::kLong);
    const torch::Tensor mirrored = torch::rand({count, 1}, random) < 0.5;
    const torch::Tensor places = torch::arange(kImageSize).expand({count, -1});
    const torch::Tensor columns = torch::where(mirrored, kImageSize - 1 - places, places) + offsets[1];
    const torch::Tensor rows = places + offsets[0];
    const torch::Tensor image = torch::arange(count).view({-1, 1, 1});
    const torch::Tensor padded = torch::constant_pad_nd(pixels, {kPadding, kPadding, kPadding, kPadding});
    return padded.index({image, rows.index({Slice(), Slice(), None}), columns.index({Slice(), None, Slice()})});
  }

  at::Generator generator(int64_t purpose) const {
    constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio: seeds far apart
    return at::detail::createCPUGenerator((seed_ + 1) * kSpread ^ static_cast<uint64_t>(purpose));
  }

  Images images_;
  int64_t batch_size_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  torch::Tensor order_;
};

}  // namespace fashion_mnist
