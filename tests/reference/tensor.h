/// Tensors that tests own: any type, any strides, and a watch over the memory that is not theirs.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "fusedsc/common/tensor_view.h"
#include "reference/array.h"
#include "reference/memory.h"

namespace fusedsc::reference {

/// How a tensor lies in memory.
enum class Memory {
  contiguous,
  channels_last,
  sliced,                ///< contiguous rows, cut out of a larger tensor
  sliced_channels_last,  ///< channels_last, cut out of a larger tensor
  some_channels,         ///< channels_last, some channels of a larger tensor's
  some_runs,             ///< likewise, where positions are a multiple of 16 bytes apart if channels are
  transposed,            ///< columns run along memory's rows
  spread,                ///< every second column of a larger tensor
  expanded,              ///< inputs only: one element for all
  expanded_positions,    ///< inputs only: one element per image and channel
};
const char* name_of(Memory memory);

Sizes strides_of(const Sizes& sizes, Memory memory);

using Random = std::mt19937_64;

/// Whether tensors made from now on start at multiples of 16 bytes, or at no multiple of anything. They start odd.
void align_tensors(bool aligned);

/// Memory starts as all one bits, NaN in every type, before, after and between the elements too.
class Tensor {
 public:
  Tensor(DataType dtype, const Sizes& sizes, Memory memory = Memory::contiguous);

  TensorView view();
  operator TensorView() { return view(); }       // NOLINT(google-explicit-constructor): tests pass them as arguments
  operator ConstTensorView() { return view(); }  // NOLINT(google-explicit-constructor)
  DataType dtype() const { return dtype_; }
  const Sizes& sizes() const { return sizes_; }

  /// Uniform in [low, high], rounded to the type.
  Tensor& fill(Random& random, double low, double high);
  Tensor& fill(const Array& values);
  /// Back to all one bits.
  void wipe();
  Array values() const;

  /// Whether every byte that belongs to no element is as it was in the beginning.
  bool surroundings_untouched() const;
  /// Whether all elements have the same bits.
  bool same_bits(const Tensor& other) const;

 private:
  double read(std::int64_t offset) const;
  void write(std::int64_t offset, double value);
  std::int64_t offset(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const;

  DataType dtype_;
  Sizes sizes_, strides_;
  std::vector<unsigned char, Allocator<unsigned char>> bytes_;
};

/// A vector of one value per channel; an empty one stands for a vector that is not given.
class Channels {
 public:
  Channels() : Channels(DataType::float32, 0) {}
  Channels(DataType dtype, std::int64_t size) : tensor_(dtype, {1, size, 1, 1}) {}

  ChannelVector vector() { return tensor_.sizes()[1] == 0 ? ChannelVector() : view(); }
  operator ChannelVector() { return vector(); }       // NOLINT(google-explicit-constructor)
  operator ConstChannelVector() { return vector(); }  // NOLINT(google-explicit-constructor)
  Tensor& tensor() { return tensor_; }
  const Tensor& tensor() const { return tensor_; }

  Channels& fill(Random& random, double low, double high);
  Channels& fill(const Vector& values);
  Vector values() const { return tensor_.values().elements; }

 private:
  ChannelVector view() { return {tensor_.view().data, tensor_.dtype(), tensor_.sizes()[1], memory().device}; }

  Tensor tensor_;
};

}  // namespace fusedsc::reference
