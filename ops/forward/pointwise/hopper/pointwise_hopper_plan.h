/// From a pointwise problem to a launch on a Hopper GPU.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_rows.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_sliced_k.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

enum class PointwiseFamily {
  resident,  ///< a block keeps its weight (pointwise_hopper.h)
  sliced_k,  ///< groups share the values of k (pointwise_hopper_sliced_k.h)
  rows,      ///< tiles are runs of bytes, with all channels (pointwise_hopper_rows.h)
};

/// A kernel that was compiled, and what for.
struct PointwiseInstance {
  using Kernel = void (*)(PointwiseParameters);
  using Memory = int (*)(const PointwiseMemoryUse& use, int stages);

  PointwiseFamily family;
  DataType dtype;
  int channels, depth;          ///< of a tile; depth: values of k that come at a time
  int row_tiles, k_slices = 1;  ///< tiles of positions that a block has at a time; groups that share the k of each
  int threads;
  bool prologue;
  EpilogueKind kind;
  Kernel kernel;
  Memory memory;
  int least_stages = 2;

  /// Of tiles of outputs, and of a weight that has its channels innermost.
  int columns() const {
    const int whole = 128 / static_cast<int>(size_of(dtype));
    return family == PointwiseFamily::rows || channels % whole == 0 ? whole : whole / 2;
  }
};

/// Tiles of a family of kernels: channels, values of k, warpgroups.
template <int kChannels, int kDepth, int kGroups>
struct Tile {};
/// Likewise, of those that cut k: tiles of positions, channels, groups that share k.
template <int kRowTiles, int kChannels, int kKSlices>
struct SlicedKTile {};
/// Likewise, of those with tiles of whole rows: channels, warpgroups.
template <int kChannels, int kGroups>
struct RowsTile {};
template <class... Tile>
struct Tiles {};

/// Of float32, without fusion: the same for forward and input gradient, whose weight comes laid out.
const std::vector<PointwiseInstance>& plain_float_instances();

/// What a product is, but for its addresses.
struct PointwiseCase {
  PointwiseProblem problem;
  bool prologue = false;
  EpilogueKind kind = EpilogueKind::plain;
  bool has_other = false, has_x = false, has_added = false;
  bool is_dense = false;                ///< nothing lies between the positions of any tensor
  bool lays_out = false;                ///< threads lay the weight out in all kernels that can (WeightSource)
  bool has_slow_rows = false;           ///< of a weight; threads may lay it out, too
  bool smem_transposes_weight = false;  ///< by blocks: pointwise_hopper_smem_transpose.h
  bool input_gradient = false;          ///< by the whole weight
  bool swap_ab = false;  ///< of planes: they are a convolution's weight, what is the weight here its positions

  /// Nothing in front of the product, and behind it at most an inference epilogue.
  bool is_plain() const { return !prologue && (kind == EpilogueKind::plain || kind == EpilogueKind::inference); }
  PointwiseMemoryUse memory_use() const {
    return {static_cast<int>(problem.depth), static_cast<int>(problem.channels), has_other, has_x, has_added, lays_out};
  }
};

/// A launch, but for the addresses.
struct PointwiseLaunch {
  const PointwiseInstance* instance = nullptr;  ///< null: none fits
  int pixel_tiles = 0, channel_tiles = 1, splits = 1, stages = 2;
  int cluster = 1;        ///< blocks that share the k of a tile
  bool lays_out = false;  ///< threads lay the weight out
  bool smem_transposes_weight = false;
  double cost = std::numeric_limits<double>::infinity();  ///< in microseconds

  /// Sets what it knows.
  void fill(const PointwiseCase& product, PointwiseParameters& parameters) const;
  void start(const char* name, const PointwiseCase& product, const PointwiseParameters& parameters, void* stream) const;
};

/// Sizes of the clusters whose blocks share the k of a tile.
inline constexpr int kClusters[] = {1, 2, 4, 8};
/// Whether so many tiles of outputs can each have such a cluster. steps: of k, of a group without one.
bool suits_cluster(const PointwiseCase& product, int cluster, std::int64_t tiles, int steps);

/// Shared memory through which the sums of a cluster's tile pass.
constexpr std::size_t cluster_bytes(int row_tiles, int channels) {
  constexpr std::size_t kAlignment = 1024;
  return kAlignment + std::size_t{4} * kTileRows * static_cast<std::size_t>(row_tiles * channels);
}

/// Whether blocks can transpose the weight of so many channels in shared memory, in place of a launch that does it once
/// for all.
bool can_smem_transpose(const PointwiseCase& product, int channels);

/// The cheapest of `instances`, of a family or of all.
PointwiseLaunch plan(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                     std::optional<PointwiseFamily> family = {});

/// Those of a family that fit, each once.
tuning::Configs configs_of(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                           PointwiseFamily family);
/// The launch of a config; without an instance where none fits.
PointwiseLaunch launch_with(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                            PointwiseFamily family, const tuning::Config& config);

/// Why the current device, or tensors of this type and so many groups, are not for these kernels; or empty. takes_tf32:
/// that there are kernels for float32, and products may round its factors to TensorFloat-32.
std::string why_not_hopper(DataType dtype, Device device, std::int64_t groups, std::int64_t pixels,
                           bool takes_tf32 = false);

/// Whether TMA can go over it: nothing lies between positions, channels are neighbours, and rows begin at
/// multiples of 16 bytes.
template <class Matrix>
bool suits_tma(const Matrix& matrix, DataType dtype = DataType::float16) {
  const auto run = static_cast<std::int64_t>(16 / size_of(dtype));
  return matrix.data == nullptr || (matrix.is_linear && matrix.run_bytes == 16 && matrix.first % run == 0);
}
/// Of a weight. One with windows has no rows for TMA, but is laid out.
bool suits_weight(const ConstTensorView& weight, const SlidingChannels& windows);
/// Whether the threads of each block lay a weight's windows out. Of larger weights a launch does it, once for all
/// blocks.
bool lays_out_in_blocks(const ConstTensorView& weight, const SlidingChannels& windows);
/// Whether it is a small dense weight of 16 bits at whose rows TMA is slow, if many positions need it.
bool has_slow_rows(const ConstTensorView& weight, const SlidingChannels& windows, std::int64_t positions);
/// Threads lay such a weight out in all kernels that keep it if its rows have at most kShortRow bytes and are at least
/// kManyRows.
inline constexpr std::int64_t kShortRow = 64, kManyRows = 64;
/// Whether rows of so many 16-bit elements begin at odd multiples of 16 bytes, where TMA is slow.
inline bool are_odd_rows(std::int64_t elements) { return elements % 16 != 0; }
/// Whether nothing lies between its positions.
template <class Matrix>
bool is_dense(const Matrix& matrix, std::int64_t channels) {
  return matrix.data == nullptr || matrix.first == channels;
}
inline constexpr const char* kUnsuited =
    "a tensor is not dense and channels_last, or its channels are no multiples of 8 (float32: 4), or it is not aligned "
    "to "
    "16 bytes";

/// Activations [positions][channels].
template <class Matrix>
TensorMap map_of(const Matrix& matrix, DataType dtype, std::int64_t channels, std::int64_t pixels, int tile_columns) {
  if (matrix.data == nullptr) return {};
  return map_of(matrix.data, dtype, channels, pixels, matrix.first, tile_columns, kTileRows);
}

}  // namespace fusedsc::gpu::hopper
