#include "reference/tensor.h"

#include <algorithm>
#include <cstring>

#include "reference/float16.h"

namespace fusedsc::reference {
namespace {

/// Elements before and after the tensor. Before: an odd number, so that nothing is better aligned than its type needs.
/// After: none where AddressSanitizer watches the end of the allocation itself, reads included.
/// After align_tensors(true), so that everything is as well aligned as allocators do it.
std::int64_t elements_before = 3;
#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t kAfter = 0;
#else
constexpr std::int64_t kAfter = 64;
#endif
constexpr unsigned char kUntouched = 0xff;

/// Elements from the first to the last, both included.
std::int64_t span_of(const Sizes& sizes, const Sizes& strides) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (sizes[axis] == 0) return 0;
    last += (sizes[axis] - 1) * strides[axis];
  }
  return last + 1;
}

template <class T>
T load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

const char* name_of(Memory memory) {
  constexpr const char* kNames[] = {"contiguous",    "channels_last",     "sliced",     "sliced_channels_last",
                                    "some_channels", "some_runs",         "transposed", "spread",
                                    "expanded",      "expanded_positions"};
  return kNames[static_cast<int>(memory)];
}

Sizes strides_of(const Sizes& sizes, Memory memory) {
  const std::int64_t c = sizes[1], h = sizes[2], w = sizes[3];
  switch (memory) {
    case Memory::contiguous: return {c * h * w, h * w, w, 1};
    case Memory::channels_last: return {h * w * c, 1, w * c, c};
    case Memory::sliced: return {(c + 1) * (h + 1) * (w + 3), (h + 1) * (w + 3), w + 3, 1};
    case Memory::sliced_channels_last: return {(h + 1) * (w + 2) * (c + 5), 1, (w + 2) * (c + 5), c + 5};
    case Memory::some_channels: return {h * w * (c + 2), 1, w * (c + 2), c + 2};
    case Memory::some_runs: return {h * w * (c + 8), 1, w * (c + 8), c + 8};
    case Memory::transposed: return {c * h * w, h * w, 1, h};
    case Memory::spread: return {c * h * 2 * w, h * 2 * w, 2 * w, 2};
    case Memory::expanded: return {0, 0, 0, 0};
    case Memory::expanded_positions: return {c, 1, 0, 0};
  }
  return {};
}

void align_tensors(bool aligned) { elements_before = aligned ? 32 : 3; }

Tensor::Tensor(DataType dtype, const Sizes& sizes, Memory memory)
    : dtype_(dtype),
      sizes_(sizes),
      strides_(strides_of(sizes, memory)),
      bytes_(static_cast<std::size_t>(elements_before + span_of(sizes_, strides_) + kAfter) * size_of(dtype),
             kUntouched) {}

TensorView Tensor::view() {
  return {bytes_.data() + elements_before * static_cast<std::int64_t>(size_of(dtype_)), dtype_, sizes_, strides_,
          memory().device};
}

std::int64_t Tensor::offset(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
  return n * strides_[0] + c * strides_[1] + h * strides_[2] + w * strides_[3];
}

double Tensor::read(std::int64_t offset) const {
  const unsigned char* at = bytes_.data() + static_cast<std::size_t>(elements_before + offset) * size_of(dtype_);
  switch (dtype_) {
    case DataType::float32: return load<float>(at);
    case DataType::float64: return load<double>(at);
    case DataType::float16: return kFloat16.decode(load<std::uint16_t>(at));
    case DataType::bfloat16: return kBFloat16.decode(load<std::uint16_t>(at));
  }
  return NAN;
}

void Tensor::write(std::int64_t offset, double value) {
  unsigned char* at = bytes_.data() + static_cast<std::size_t>(elements_before + offset) * size_of(dtype_);
  switch (dtype_) {
    case DataType::float32: return store(at, static_cast<float>(value));
    case DataType::float64: return store(at, value);
    case DataType::float16: return store(at, kFloat16.encode(value));
    case DataType::bfloat16: return store(at, kBFloat16.encode(value));
  }
}

Tensor& Tensor::fill(Random& random, double low, double high) {
  for_each_index(sizes_, [&](auto... index) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    write(offset(index...), low + (high - low) * unit);
  });
  return *this;
}

Tensor& Tensor::fill(const Array& values) {
  for_each_index(sizes_, [&](auto... index) { write(offset(index...), values.at(index...).value); });
  return *this;
}

void Tensor::wipe() { std::fill(bytes_.begin(), bytes_.end(), kUntouched); }

Array Tensor::values() const {
  Array result(sizes_);
  for_each_index(sizes_, [&](auto... index) { result.at(index...).value = read(offset(index...)); });
  return result;
}

bool Tensor::surroundings_untouched() const {
  const std::size_t size = size_of(dtype_);
  std::vector<bool> is_element(bytes_.size() / size);
  for_each_index(
      sizes_, [&](auto... index) { is_element[static_cast<std::size_t>(elements_before + offset(index...))] = true; });
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (!is_element[i / size] && bytes_[i] != kUntouched) return false;
  }
  return true;
}

bool Tensor::same_bits(const Tensor& other) const {
  return dtype_ == other.dtype_ && strides_ == other.strides_ && bytes_ == other.bytes_;
}

Channels& Channels::fill(Random& random, double low, double high) {
  tensor_.fill(random, low, high);
  return *this;
}

Channels& Channels::fill(const Vector& values) {
  Array array(tensor_.sizes());
  array.elements = values;
  tensor_.fill(array);
  return *this;
}

}  // namespace fusedsc::reference
