/// Convolution that skips the zeros of x, for inference: seed 002's ECR, and, with pooling, its PECR.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// The greatest value of each window; {vertical, horizontal}. Windows lie within the map.
struct MaxPooling {
  std::array<std::int64_t, 2> size{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};

  explicit operator bool() const { return size[0] > 1 || size[1] > 1 || stride[0] > 1 || stride[1] > 1; }
  /// floor((in - size) / stride) + 1. Throw InvalidArgument for a size or stride below 1, or a window beyond the map.
  std::int64_t output_height(std::int64_t input_height) const;
  std::int64_t output_width(std::int64_t input_width) const;
};

// A compressed map leaves zeros out, position by position: of each kMapList channels the values other than zero lie
// side by side, in the order of their channels, and zeros behind them. It is three tensors of fixed sizes, so that
// graphs of a GPU can be captured with it:
//
//   values    the map's type  [N][H][W][C'], where C' is C rounded up to kMapList
//   channels  bytes           [N][H][W][C'], of each value its channel within the list
//   counts    bytes           [N][H][W][C' / kMapRun], how many of each kMapRun channels are given
//
// Views of the values have the map's own sizes, [N, C, H, W], and compressed_strides(). Vectors know no type of bytes:
// those of channels and counts say float32, with four bytes to an element. Whatever the bytes are, no memory but the
// map's and the weight's is read.
inline constexpr std::int64_t kMapList = 32;
inline constexpr std::int64_t kMapRun = 8;
/// C rounded up to whole lists.
constexpr std::int64_t compressed_channels(std::int64_t channels) {
  return (channels + kMapList - 1) / kMapList * kMapList;
}
Sizes compressed_strides(const Sizes& map);
/// Elements of the vectors of channels, and of counts.
std::int64_t compressed_channels_size(const Sizes& map);
std::int64_t compressed_counts_size(const Sizes& map);

/// y = pool(activation(conv(x, weight) + bias)). A zero of x is not multiplied: where a weight is infinite or NaN, what
/// would be NaN is not.
struct SparseArguments {
  ConstTensorView x;  ///< [N, C, H, W]
  /// Where x is a compressed map, of which it has the values; or empty. Then kMapRun divides C/groups, or groups is 1.
  ConstChannelVector x_channels, x_counts;
  ConstTensorView weight;  ///< [M, C/groups, Kh, Kw], dtype of x; without data where `packed` is given
  /// The weight as pack_sparse_weight() leaves it; or empty: then each call packs it.
  ConstChannelVector packed;
  ConstChannelVector bias;  ///< [M], dtype of x; or empty
  std::int64_t groups = 1;  ///< divides C and M
  Window window;
  Activation activation = Activation::identity;
  MaxPooling pooling;
  TensorView y;  ///< [N, M, H', W'], dtype of x
  /// Where y becomes a compressed map, of which it has the values; or empty. Then kMapList divides M/groups, or groups
  /// is 1.
  ChannelVector y_channels, y_counts;
  /// The kernel, or kernel and config, that this call is computed by, as sparse_conv2d_configs() lists them; empty:
  /// what the registry has for the problem, whatever its zeros. Where it does not fit the problem, too. What is forced
  /// comes first.
  std::string config;
};

/// Throws InvalidArgument or Unsupported.
void sparse_conv2d(const SparseArguments& arguments, const Execution& execution);
std::size_t sparse_conv2d_workspace_bytes(const SparseArguments& arguments, int threads);
Plan<SparseArguments> plan_sparse_conv2d(const SparseArguments& arguments, int threads);
std::vector<Candidate> explain_sparse_conv2d(const SparseArguments& arguments);
/// What `config` may be, `most` of these: what the registry has for the problem, and what it would try next. None where
/// a kernel is forced, or there is nothing to compute.
std::vector<std::string> sparse_conv2d_configs(const SparseArguments& arguments, int threads, std::size_t most);

/// The sizes of y: throws InvalidArgument where x, weight, groups, window and pooling do not fit together.
Sizes sparse_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups, const Window& window,
                          const MaxPooling& pooling);

/// A weight for many calls: for each group and each kPackedOutputs of its outputs [C/groups * Kh * Kw][kPackedOutputs],
/// zero where there are fewer outputs. A product's row of outputs is one piece of memory.
struct PackSparseWeightArguments {
  ConstTensorView weight;   ///< [M, C/groups, Kh, Kw]
  std::int64_t groups = 1;  ///< divides M
  ChannelVector packed;     ///< [packed_sparse_weight_size()], accumulation type
};
inline constexpr std::int64_t kPackedOutputs = 64;
std::int64_t packed_sparse_weight_size(const Sizes& weight, std::int64_t groups);
void pack_sparse_weight(const PackSparseWeightArguments& arguments, const Execution& execution);

/// How much there is to do, as seed 002 counts it: Eqs. 1 and 2 for the dense convolution, and, of each window, a
/// product for each value other than zero and an addition for each of these but the first.
struct SparseWork {
  std::int64_t dense_products = 0, dense_additions = 0, products = 0, additions = 0;
};
/// Of x on the CPU; `weight` gives sizes only.
SparseWork sparse_work(const SparseArguments& arguments);

}  // namespace fusedsc
