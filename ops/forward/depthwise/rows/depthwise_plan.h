/// From a depthwise problem to a launch: pure functions of the problem, the kernel's tile and the size of the GPU.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// What one thread of a kernel computes at a time.
struct DepthwiseTile {
  int channels, columns;
  int period;           ///< rows (of a strip, and its overlap) are worked off in whole periods of so many
  int least_width = 0;  ///< of images that are worth it
};

/// In output rows, for kernels that go along input rows.
constexpr int forward_period(int kernel, int stride, int ahead) {
  return common_multiple(((kernel - 1) / stride + 1) * stride, ahead + 1) / stride;
}

/// A kernel that was compiled, and what for. Kernels for any window have kernel 0.
template <class Parameters>
struct DepthwiseInstance {
  using Kernel = void (*)(Parameters);

  DataType dtype;
  int kernel, stride;
  DepthwiseTile tile;
  // With nothing fused, with anything, and with what training alone fuses where that makes a difference. Null: see
  // another.
  Kernel plain = nullptr, fused = nullptr, training = nullptr;
  std::size_t plain_memory = 0, fused_memory = 0;  ///< of a block, for rows on their way
};

/// A pass over positions, as the kernel for any window.
template <class Parameters>
constexpr DepthwiseInstance<Parameters> pass_instance(DataType dtype, int channels, int columns,
                                                      void (*kernel)(Parameters)) {
  return {dtype, 0, 0, {channels, columns, 1}, kernel, kernel};
}

/// What the items of a launch are strips of.
struct DepthwiseGrid {
  std::int64_t batch, channels, height, width;
  std::int64_t element_bytes;
  bool channels_fastest;
  int overlap;  ///< rows that neighbouring strips both load, in rows of the strips; negative: strips have one row
  bool leaves_sums = false;  ///< each block leaves many sums of each of its channels
};

template <class Instance>
int overlap_of(const Instance& instance) {
  return instance.kernel == 0 ? -1 : (instance.kernel - 1) / instance.stride;
}

/// `blocks`: as many as run at the same time. All others would only wait, and make more partial sums.
ItemWork plan_depthwise_work(const DepthwiseGrid& grid, const DepthwiseTile& tile, int blocks);

DepthwiseShape depthwise_shape(const Sizes& x, const Sizes& y, const Window& window);

/// Empty, or why the sizes are too large for the kernels' 32-bit indices.
std::string too_large_for_gpu(const Sizes& x, const Sizes& y, const Window& window);

/// Whether `count` neighbouring channels of each tensor that is given can be loaded and stored as one vector.
bool channels_join(std::int64_t count, std::initializer_list<ConstTensorView> tensors);

/// The most for which that is so, up to 8.
int joined_channels(std::initializer_list<ConstTensorView> tensors);

/// Likewise columns, from each multiple of `count` on.
bool columns_join(std::int64_t count, const ConstTensorView& tensor);
/// In all of the tensors that are given.
bool columns_join(std::int64_t count, std::initializer_list<ConstTensorView> tensors);

/// What an instance of a list shall do.
template <class Parameters>
struct DepthwiseWanted {
  using Instance = DepthwiseInstance<Parameters>;

  typename Instance::Kernel Instance::*kernel;
  DataType dtype;
  const Window& window;
  std::int64_t multiplier;
  int joined;  ///< neighbouring channels that can be loaded as one vector: joined_channels()

  /// any_window: whether of the kernels for any window, or of those that know this one.
  bool is(const Instance& instance, bool any_window) const {
    if (instance.dtype != dtype || instance.*kernel == nullptr || (instance.kernel == 0) != any_window) return false;
    const bool is_square = window.kernel[0] == window.kernel[1] && window.stride[0] == window.stride[1] &&
                           window.dilation[0] == 1 && window.dilation[1] == 1;
    const bool knows =
        multiplier == 1 && is_square && instance.kernel == window.kernel[0] && instance.stride == window.stride[0];
    if (!any_window && !knows) return false;
    return instance.tile.channels == 1 || (multiplier == 1 && instance.tile.channels <= joined);
  }
};

inline tuning::Config config_of(const DepthwiseTile& tile) {
  return {{tuning::Knob::channels, tile.channels}, {tuning::Knob::columns, tile.columns}};
}

template <class Parameters, std::size_t kSize>
tuning::Configs instance_configs(const DepthwiseInstance<Parameters> (&instances)[kSize],
                                 const DepthwiseWanted<Parameters>& wanted, bool any_window) {
  tuning::Configs configs;
  for (const auto& instance : instances) {
    if (wanted.is(instance, any_window)) configs.push_back(config_of(instance.tile));
  }
  return configs;
}

/// Throws Unsupported if there is none.
template <class Parameters, std::size_t kSize>
const DepthwiseInstance<Parameters>& choose_instance(const DepthwiseInstance<Parameters> (&instances)[kSize],
                                                     const DepthwiseWanted<Parameters>& wanted, bool any_window,
                                                     const tuning::Config& config) {
  for (const auto& instance : instances) {
    if (wanted.is(instance, any_window) && config_of(instance.tile) == config) return instance;
  }
  throw Unsupported(std::string("depthwise: no kernel for ") + name_of(wanted.dtype) + " has " +
                    tuning::printed(config) + " for these arguments");
}

/// Of the first that images of such a width are worth: the lists have the better first.
template <class Parameters, std::size_t kSize>
tuning::Config instance_prior_config(const DepthwiseInstance<Parameters> (&instances)[kSize],
                                     const DepthwiseWanted<Parameters>& wanted, bool any_window, std::int64_t width) {
  const DepthwiseInstance<Parameters>* found = nullptr;
  for (const auto& instance : instances) {
    if (!wanted.is(instance, any_window) || instance.tile.least_width > width) continue;
    found = &instance;
    break;
  }
  return found != nullptr ? config_of(found->tile) : instance_configs(instances, wanted, any_window).at(0);
}

/// Where there is one kernel for everything: the first for this type whose channels can be loaded as vectors.
template <class Parameters, std::size_t kSize>
const DepthwiseInstance<Parameters>& choose_instance(const DepthwiseInstance<Parameters> (&instances)[kSize],
                                                     DataType dtype, const Window& window, std::int64_t multiplier,
                                                     std::initializer_list<ConstTensorView> tensors) {
  const DepthwiseWanted<Parameters> wanted{&DepthwiseInstance<Parameters>::plain, dtype, window, multiplier,
                                           joined_channels(tensors)};
  return choose_instance(instances, wanted, true, instance_configs(instances, wanted, true).at(0));
}

}  // namespace fusedsc::gpu
