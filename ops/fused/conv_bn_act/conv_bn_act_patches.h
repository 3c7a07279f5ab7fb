/// The windows of a dense convolution with few input channels, as rows of a matrix product on GPUs: what of them lies
/// where in shared memory. Channels are neighbours in memory, so that a row of a window is one run of elements. A run
/// is read as words, of two elements of 16 bits or of one that is rounded to TensorFloat-32; each lane of a product has
/// a few (wave_product.h).
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/products/wave_transpose.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/registers.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::gpu {

inline constexpr int kConvWarps = 8, kConvThreads = 32 * kConvWarps;
inline constexpr int kMostPatchWords = 8;  ///< of a lane
/// Elements from position to position in images of three channels at stride 2: the kernels that know it keep addresses
/// in their instructions.
inline constexpr int kImageStep = 6;

/// How words hold elements of T.
template <class T>
struct PatchFormat {
  static constexpr int kElements = 4 / static_cast<int>(sizeof(T));  ///< of a word
  static constexpr int kRun = 16 / static_cast<int>(sizeof(T));      ///< elements that are copied at once
  static constexpr int kShare = 4 / kElements;                       ///< a lane's words of 16 elements
  static constexpr int kMasked = kShare / 2;                         ///< of these, in images: those that masks change
};

/// A patch, the elements under a window, in the order of the product: word 4 * r + t is word r of lanes with l % 4 ==
/// t. Words may hold an element before the run or behind it, which a mask takes away.
struct PatchWords {
  std::int32_t places[4 * kMostPatchWords];  ///< of a word, counted from the patch's first
  std::uint32_t masks[4 * kMostPatchWords];  ///< of what is the patch's
  std::int32_t
      elements[8 * kMostPatchWords];  ///< of the weight's filter, where a word's elements find their factors; or -1
};

/// Tiles of whole rows of the output, and the rows of x under them in shared memory. Before and between the rows are
/// zeros, for what is left and right of the image.
struct ConvShape {
  ConstDeviceTensor x, weight;
  PatchWords patch;
  int channels = 0;                 ///< of the output
  int groups = 1, group_warps = 1;  ///< of output channels; so many warps have the same ones
  int input_height = 0, output_height = 0, output_width = 0, padding_top = 0, stride_height = 1;
  int tile_rows = 1, input_rows = 1;     ///< of a tile
  int row_tiles = 1;                     ///< products, of 16 positions each, in a row of the output
  int row_runs = 1;                      ///< copies, of 16 bytes each, in a row of x
  int row_words = 0, product_words = 0;  ///< of shared memory, from the patches of a row, or product, to the next's
  int turn_rows = 0, turn_products = 0, turn_words = 0;  ///< from a product to the next of the same warp
  int wrap_words = 0;                                    ///< more, where that is in the next row
  int partial_product = 0, partial_columns = 16;         ///< of a row: which has fewer positions, if any, and how many
  bool backwards = false;                                ///< the last tile comes first, as it may still be in a cache
  int pitch = 0, gap = 0;                 ///< of a row in shared memory and of the zeros before it, in words
  int first_word = 0, position_step = 0;  ///< where the patches of a row begin, and how far apart they lie
  int stage_words = 0;
  std::uint32_t tiles = 0;
  Divisor tiles_of_image, by_group_warps;
  const void *mean = nullptr, *invstd = nullptr, *bn_weight = nullptr, *bn_bias = nullptr;
  Activation activation = Activation::identity;
  bool clamps = false;  ///< all that the activation does: between these
  float low = 0, high = 0;
};

/// Where a tile lies.
struct ConvTile {
  int image, row;

  FUSEDSC_DEVICE ConvTile(const ConvShape& p, std::uint32_t tile) {
    if (p.backwards) tile = p.tiles - 1 - tile;
    image = static_cast<int>(p.tiles_of_image.divide(tile));
    row = static_cast<int>(tile) * p.tile_rows;
  }
};

/// By all threads of the block: all of its memory is zero from now on.
FUSEDSC_DEVICE void clear_shared_memory(int words) {
  auto* memory = static_cast<Aligned<std::uint32_t, 4>*>(shared_memory());
  for (int i = thread_index(); i < words / 4; i += kConvThreads) memory[i] = {};
  block_barrier();
}

/// What a warp multiplies: 16 positions of a row of a tile, and a group of channels. The warps of a group take turns.
struct ConvTurn {
  int group, first, row = 0, product;

  FUSEDSC_DEVICE explicit ConvTurn(const ConvShape& p) {
    std::uint32_t rest = static_cast<std::uint32_t>(thread_index() / 32);
    group = static_cast<int>(p.by_group_warps.divide(rest));
    first = product = static_cast<int>(rest);
    for (; product >= p.row_tiles; product -= p.row_tiles) ++row;
  }

  struct Place {
    int row, product;  ///< of the tile, of the row
    int index;         ///< of all products of the tile
    int words;         ///< from the tile's first position in shared memory
  };

  /// Calls multiply(place) for the warp's products.
  template <class Multiply>
  FUSEDSC_DEVICE void for_products(const ConvShape& p, const ConvTile& tile, const Multiply& multiply) const {
    const int end = group < p.groups ? least(p.tile_rows, p.output_height - tile.row) * p.row_tiles : 0;
    Place place{row, product, first, row * p.row_words + product * p.product_words};
    while (place.index < end) {
      multiply(place);
      place.index += p.group_warps;
      place.row += p.turn_rows;
      place.product += p.turn_products;
      place.words += p.turn_words;
      if (place.product >= p.row_tiles) {
        place.product -= p.row_tiles;
        place.words += p.wrap_words;
        ++place.row;
      }
    }
  }
};

/// Starts copying the rows of x that a tile needs, each by a warp; rows outside of the image are zeros.
template <class T>
FUSEDSC_DEVICE void start_input_rows(const ConvShape& p, const ConvTile& tile, std::uint32_t* stage) {
  const int lane = thread_index() % 32, first = tile.row * p.stride_height - p.padding_top;
  constexpr int kRun = PatchFormat<T>::kRun;
  const T* image = elements_of<T>(p.x) + tile.image * p.x.image + kRun * lane;
  for (int row = thread_index() / 32; row < p.input_rows; row += kConvWarps) {
    const bool inside = first + row >= 0 && first + row < p.input_height;
    const T* from = image + (first + row) * p.x.row;
    std::uint32_t* to = stage + row * p.pitch + p.gap + 4 * lane;
    for (int run = lane; run < p.row_runs; run += 32, from += 32 * kRun, to += 128) start_copy<16>(to, from, inside);
  }
}

/// Reads a lane's words of patches. Those of images (kStep > 0) have anything masked in the last ones only. kOnes: the
/// place behind the last element has a 1, with which sums over positions come out of products; and words are read from
/// word `first` on, in a circle (whole shares).
template <class T, int kWords, int kStep, bool kOnes>
struct PatchReader {
  using Format = PatchFormat<T>;
  static constexpr bool kIsImage = kStep > 0;
  int places[kWords];  ///< in bytes
  std::uint32_t masks[kWords], ones[kWords];
  int step;

  FUSEDSC_DEVICE PatchReader(const ConvShape& p, int first) : step(kIsImage ? kStep : p.position_step) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
      const int word = (first + r) % kWords;
      places[r] = 4 * (p.first_word + lane / 4 * step + p.patch.places[4 * word + lane % 4]);
      masks[r] = p.patch.masks[4 * word + lane % 4];
      ones[r] = kOnes && word == kWords - 1 && lane % 4 == 3 ? one() : 0u;
    }
  }

  FUSEDSC_DEVICE static std::uint32_t one() {
    if constexpr (sizeof(T) == 2) return to_bits(1, 0, T());
    return __builtin_bit_cast(std::uint32_t, 1.0f);
  }
  FUSEDSC_DEVICE static bool may_be_masked(int r) {
    if (!kIsImage) return true;
    return kOnes ? r % Format::kShare >= Format::kShare - Format::kMasked : r >= kWords - Format::kMasked;
  }

  /// Of position lane / 4 (and lane / 4 + 8) of the product whose patches begin at `from`.
  template <int kEights>
  FUSEDSC_DEVICE void read(const std::uint32_t* from, std::uint32_t (&to)[kEights][kWords]) const {
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
      const auto* own = reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(from) + places[r]);
#pragma unroll
      for (int h = 0; h < kEights; ++h) {
        to[h][r] = own[h * 8 * (kIsImage ? kStep : step)];
        if (may_be_masked(r)) to[h][r] &= masks[r];
        if (kOnes && r % Format::kShare == Format::kShare - 1) to[h][r] |= ones[r];
        if constexpr (sizeof(T) == 4) to[h][r] = to_tf32(__builtin_bit_cast(float, to[h][r]));
      }
    }
  }
};

/// The factors of a lane's words: of filter `channel`, zero where there is none.
template <class T, int kWords>
FUSEDSC_DEVICE void read_filter(const ConvShape& p, int channel, int first, std::uint32_t (&to)[kWords]) {
  constexpr int kElements = PatchFormat<T>::kElements;
  const T* filter = elements_of<T>(p.weight) + channel * p.weight.image;
#pragma unroll
  for (int r = 0; r < kWords; ++r) {
    to[r] = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int element = p.patch.elements[(4 * ((first + r) % kWords) + thread_index() % 4) * kElements + i];
      if (element < 0 || channel >= p.channels) continue;
      if constexpr (kElements == 2) to[r] |= std::uint32_t{filter[element].bits} << 16 * i;
      else to[r] = to_tf32(filter[element]);
    }
  }
}

/// vector[channel], or `otherwise` where there is no vector; 0 for channels that do not exist.
FUSEDSC_DEVICE float channel_value(const ConvShape& p, const void* vector, int channel, float otherwise) {
  if (channel >= p.channels) return 0;
  return vector != nullptr ? static_cast<const float*>(vector)[channel] : otherwise;
}

/// Calls work(stage of shared memory, tile) for the block's tiles one after the other, while start(stage, tile) has the
/// copies of the next ones under way.
template <int kStages, class Start, class Work>
FUSEDSC_DEVICE void for_tiles(const ConvShape& p, const Start& start, const Work& work) {
  auto* memory = static_cast<std::uint32_t*>(shared_memory());
  std::uint32_t ahead = block_index();
  int slot = 0, slot_ahead = 0;
  const auto start_next = [&] {
    if (ahead < p.tiles) start(memory + slot_ahead * p.stage_words, ConvTile(p, ahead));
    commit_copies();
    ahead += block_count();
    slot_ahead = slot_ahead + 1 == kStages ? 0 : slot_ahead + 1;
  };
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) start_next();
  for (std::uint32_t tile = block_index(); tile < p.tiles; tile += block_count()) {
    wait_for_copies<kStages - 2>();
    block_barrier();
    start_next();
    work(memory + slot * p.stage_words, ConvTile(p, tile));
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  block_barrier();
}

}  // namespace fusedsc::gpu
