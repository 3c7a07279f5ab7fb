/// BatchNorms folded on a GPU: a thread per channel of them all.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/fused/batch_norm_fold.h"

namespace fusedsc::gpu {

inline constexpr int kFoldThreads = 128;
inline constexpr int kMostFolds = 8;  ///< BatchNorms of a launch

/// A vector of any type, or none.
struct VectorOfAnyType {
  const void* data = nullptr;
  DataType dtype = DataType::float32;
};

struct BatchNormFoldParameters {
  struct One {
    VectorOfAnyType weight, bias, mean, variance;
    double eps = 0;
    int end = 0;  ///< the channel behind its last
  };
  One batch_norms[kMostFolds];
  int channels = 0;      ///< of all
  void* to = nullptr;    ///< where the first channel's mean is
  std::int64_t row = 0;  ///< from one of the results' rows to the next
};

/// An element as it lies in memory: nothing is asked of it before all of a channel's are on their way.
FUSEDSC_DEVICE std::uint64_t bits_of(const VectorOfAnyType& vector, int channel) {
  if (vector.data == nullptr) return 0;
  switch (vector.dtype) {
    case DataType::float64: return static_cast<const std::uint64_t*>(vector.data)[channel];
    case DataType::float32: return static_cast<const std::uint32_t*>(vector.data)[channel];
    default: return static_cast<const std::uint16_t*>(vector.data)[channel];
  }
}

/// What they mean; of a vector that is missing, `otherwise`.
template <class A>
FUSEDSC_DEVICE A value_of(const VectorOfAnyType& vector, std::uint64_t bits, A otherwise) {
  if (vector.data == nullptr) return otherwise;
  switch (vector.dtype) {
    case DataType::float64: return static_cast<A>(__builtin_bit_cast(double, bits));
    case DataType::float32: return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits));
    case DataType::float16: return to_float(Float16{static_cast<std::uint16_t>(bits)});
    default: return to_float(BFloat16{static_cast<std::uint16_t>(bits)});
  }
}

template <class A>
FUSEDSC_DEVICE void fold_batch_norms(const BatchNormFoldParameters& p) {
  const int channel = static_cast<int>(block_index()) * kFoldThreads + thread_index();
  if (channel >= p.channels) return;
  int number = 0, first = 0;
#pragma unroll
  for (int i = 0; i + 1 < kMostFolds; ++i) {
    if (channel < p.batch_norms[i].end) break;
    first = p.batch_norms[i].end;
    number = i + 1;
  }
  const BatchNormFoldParameters::One& norm = p.batch_norms[number];
  const int own = channel - first;
  const std::uint64_t mean_bits = bits_of(norm.mean, own), variance_bits = bits_of(norm.variance, own),
                      weight_bits = bits_of(norm.weight, own), bias_bits = bits_of(norm.bias, own);
  const A mean = value_of(norm.mean, mean_bits, A(0)), variance = value_of(norm.variance, variance_bits, A(1));
  const A eps = norm.variance.data != nullptr ? static_cast<A>(norm.eps) : A(0);
  const A invstd = A(1) / sqrt(variance + eps);
  const A scale = value_of(norm.weight, weight_bits, A(1)) * invstd;
  const auto put = [&](StatisticsRow row, A value) {
    static_cast<A*>(p.to)[static_cast<int>(row) * p.row + channel] = value;
  };
  put(StatisticsRow::mean, mean);
  put(StatisticsRow::invstd, invstd);
  put(StatisticsRow::variance, variance);
  put(StatisticsRow::scale, scale);
  put(StatisticsRow::shift, value_of(norm.bias, bias_bits, A(0)) - mean * scale);
}

}  // namespace fusedsc::gpu
