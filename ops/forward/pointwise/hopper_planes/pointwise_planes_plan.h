/// From a pointwise problem with contiguous tensors to a launch on a Hopper GPU.
#pragma once

#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_sliced_k.h"

namespace fusedsc::gpu::hopper {

/// A kernel that was compiled, and what for.
struct PlanesInstance {
  using Kernel = void (*)(PlanesParameters);
  using Memory = int (*)(const PointwiseMemoryUse& use, const PlanesTiling& tiling, int stages);
  using LeastStages = int (*)(const PlanesTiling& tiling);  ///< 0: it cannot have such tiles

  PointwiseFamily family;  ///< resident or sliced_k
  bool whole_images;       ///< its tiles are PlanesRun's
  bool shifted;            ///< they are PlanesShifted's
  DataType dtype;
  int channels, depth;      ///< of a tile; depth: values of k that come at a time
  int row_tiles, k_slices;  ///< tiles of positions that a block has at a time; groups that share the k of each
  int threads;
  bool smem_transposes;  ///< a weight of float32, if that is wanted
  bool prologue;
  EpilogueKind kind;
  Kernel kernel;
  Memory memory;
  LeastStages least_stages;

  /// Of a tile of a weight that has its channels innermost.
  int columns() const { return channels > 32 ? 64 : 32; }
};

/// What a product is, but for its addresses.
struct PlanesCase : PointwiseCase {
  int images = 0, positions = 0;  ///< positions: of an image
  bool whole_images = false;      ///< its planes are no whole runs of 16 bytes, but small
  bool shifted = false;           ///< likewise, but large
  int together_log2 = 0;          ///< planes that are whole runs together

  PlanesTiling tiling() const;
};
PlanesCase planes_case(const ConstTensorView& activations, std::int64_t channels);
/// Whether the threads of each block lay the weight out (has_slow_rows). Only blocks that keep it do.
bool lays_out_weight(const PlanesCase& product, const ConstTensorView& weight);

/// A launch, but for the addresses.
struct PlanesLaunch {
  const PlanesInstance* instance = nullptr;  ///< null: none fits
  int pixel_tiles = 0, channel_tiles = 1, splits = 1, stages = 2;
  int cluster = 1;       ///< blocks that share the k of a tile
  bool spreads = false;  ///< where blocks stay: tiles go round them before they go round a block's groups
  bool smem_transposes_weight = false;
  double cost = std::numeric_limits<double>::infinity();  ///< in microseconds

  /// Sets what it knows.
  void fill(const PlanesCase& product, PlanesParameters& parameters) const;
  void start(const char* name, const PlanesCase& product, const PlanesParameters& parameters, void* stream) const;
};

/// The cheapest of `instances`, of a family or of all.
PlanesLaunch plan(std::span<const PlanesInstance> instances, const PlanesCase& product,
                  std::optional<PointwiseFamily> family = {});

// As those of pointwise_hopper_plan.h.
tuning::Configs configs_of(std::span<const PlanesInstance> instances, const PlanesCase& product,
                           PointwiseFamily family);
PlanesLaunch launch_with(std::span<const PlanesInstance> instances, const PlanesCase& product, PointwiseFamily family,
                         const tuning::Config& config);

/// Whether all of these tensors (or nothing) are planes that TMA can read.
bool are_planes(std::initializer_list<ConstTensorView> tensors);
inline constexpr const char* kNoPlanes =
    "a tensor is not contiguous, or not aligned to 16 bytes, or its planes have fewer than 16 positions, or are too "
    "few "
    "to be whole runs of 16 bytes together";

/// Describes planes to TMA, in tiles of so many channels; nothing where it has no use for that.
TensorMap map_of_planes(const ConstTensorView& planes, const PlanesCase& product, int tile_channels);

}  // namespace fusedsc::gpu::hopper
