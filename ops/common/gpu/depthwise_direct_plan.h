/// From a small depthwise problem to a launch whose threads have an output or a few: pure functions of the problem and
/// of the GPU's size.
#pragma once

#include <span>
#include <string>

#include "fusedsc/common/gpu/depthwise_direct.h"
#include "fusedsc/common/gpu/depthwise_plan.h"

namespace fusedsc::gpu {

/// What a thread has: neighbouring channels of some rows (or pairs of rows and columns of an input gradient).
struct DirectTile {
  int channels, rows;
};

/// A kernel that was compiled, and what for.
template <class Parameters>
struct DirectInstance {
  DataType dtype;
  int kernel, stride;  ///< stride 0: any
  bool channels_last;
  DirectTile tile;
  int loads;  ///< of a thread, apart from weights
  void (*run)(Parameters);
  std::size_t memory;  ///< of a block
};

/// What threads share out: the rows and columns of images that they begin at. In a channels_last one neighbouring
/// threads have neighbouring channels.
struct DirectGrid {
  std::int64_t batch, channels, height, width;
  bool channels_last;

  std::int64_t threads(const DirectTile& tile) const;
};

/// Whether a pass over `from` to `to` is small enough: what measured best on an H200
/// (docs/performance_gpu_depthwise.md).
bool suits_direct(const ConstTensorView& from, const ConstTensorView& to, int taps, bool channels_last,
                  int multiprocessors);

/// What use_depthwise_direct() has to say: whether there may be any of these kernels, or one whose threads have that,
/// and whether problems need not be small.
bool may_use_direct();
bool may_use_direct(const DirectTile& tile, bool channels_last);
bool must_use_direct();

/// What a launch takes, in cycles: those of a thread by itself, and of the more of a multiprocessor's instructions and
/// accesses to its first-level cache. Counted, not fitted.
double direct_cost(std::int64_t threads, const DirectTile& tile, int loads, int taps, int element_bytes,
                   int multiprocessors);

DirectWork plan_direct_work(const DirectGrid& grid, const DirectTile& tile, int element_bytes);

/// Empty, or why there are no kernels for a pass over `from` to `to`, or over both; and with that weight.
std::string why_no_direct(const ConstTensorView& from, const ConstTensorView& to, const Window& window);
std::string why_no_direct(const ConstTensorView& from, const ConstTensorView& to, const ConstTensorView& weight,
                          const Window& window);

/// Without its address.
template <class Void>
BasicCompactTensor<Void> compact(const BasicTensorView<Void*>& tensor) {
  const auto stride = [&](int axis) {
    return tensor.sizes[axis] > 1 ? static_cast<std::uint32_t>(tensor.strides[axis]) : 0;
  };
  return {nullptr, stride(0), stride(1), stride(2), stride(3)};
}

/// 1 if a weight is dense, -1 if it is dense and turned around, else 0.
int direct_step(const ConstTensorView& weight);

/// Where it begins in memory, whichever way around it is.
const void* lowest_address(const ConstTensorView& weight);

/// The instance that costs least, if the problem suits it; or none.
template <class Parameters>
const DirectInstance<Parameters>* choose_direct(std::span<const DirectInstance<Parameters>> instances,
                                                const DirectGrid& grid, const Window& window,
                                                const ConstTensorView& weight, const ConstTensorView& from,
                                                const ConstTensorView& to) {
  const auto bytes = static_cast<int>(size_of(from.dtype)), taps = static_cast<int>(weight.sizes[2] * weight.sizes[3]);
  if (!must_use_direct() && !suits_direct(from, to, taps, grid.channels_last, multiprocessors())) return nullptr;
  const auto joins = [&](int channels) {
    return channels_join(channels, {from, to}) &&
           reinterpret_cast<std::uintptr_t>(lowest_address(weight)) % static_cast<std::uintptr_t>(channels * bytes) ==
               0;
  };
  const DirectInstance<Parameters>* best = nullptr;
  double least = 0;
  for (const DirectInstance<Parameters>& instance : instances) {
    if (instance.dtype != from.dtype || instance.kernel != window.kernel[0]) continue;
    if (instance.stride != 0 && instance.stride != window.stride[0]) continue;
    if (instance.channels_last != grid.channels_last || !may_use_direct(instance.tile, grid.channels_last)) continue;
    if (instance.tile.channels > 1 && !joins(instance.tile.channels)) continue;
    const double cost =
        direct_cost(grid.threads(instance.tile), instance.tile, instance.loads, taps, bytes, multiprocessors());
    if (best != nullptr && cost >= least) continue;
    best = &instance;
    least = cost;
  }
  return best;
}

}  // namespace fusedsc::gpu
