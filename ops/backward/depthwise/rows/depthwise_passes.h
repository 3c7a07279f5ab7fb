/// The launches of a depthwise backward pass on GPUs, each with the sum of what its blocks leave: worked out once, run
/// with any addresses.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/common/gpu/sums/block_sums.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/forward/depthwise/rows/depthwise_source.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {

inline constexpr const char* kDepthwiseBackward = "depthwise_conv2d_backward";

struct DepthwiseInputGradientParameters;
struct DepthwiseWeightGradientParameters;

/// A gradient of x.
class DepthwiseInputPass {
 public:
  using Instance = DepthwiseInstance<DepthwiseInputGradientParameters>;

  DepthwiseInputPass(const DepthwiseBackwardArguments& a, const Instance& instance);
  void* take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const;
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  const Instance* instance_;
  Instance::Kernel kernel_;
  ItemWork work_;
  std::size_t memory_ = 0;  ///< of a block
  bool join_columns_ = false;
};

/// Gradients of the weight and the bias.
class DepthwiseWeightPass {
 public:
  using Instance = DepthwiseInstance<DepthwiseWeightGradientParameters>;

  DepthwiseWeightPass(const DepthwiseBackwardArguments& a, const Instance& instance);
  void* take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const;
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  const Instance* instance_;
  Instance::Kernel kernel_;
  ItemWork work_;
  std::size_t memory_ = 0;  ///< of a block
  std::int64_t tap_groups_ = 1;
};

template <class Pass>
std::size_t workspace_bytes_of(const Pass& pass, const DepthwiseBackwardArguments& a) {
  Arena measured(nullptr);
  pass.take_partials(a, measured);
  return measured.used();
}

/// Of a pass that takes partial sums from the workspace.
template <class Pass>
Plan<DepthwiseBackwardArguments> plan_of_pass(const DepthwiseBackwardArguments& a, const Pass& pass) {
  return {workspace_bytes_of(pass, a),
          [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

// ------------------------------------------------------------------------------------------------ what passes share

inline DevicePrologue prologue_of(const Prologue& prologue) {
  return {prologue.scale.data, prologue.shift.data, prologue.activation};
}

inline DeviceGradientPrologue prologue_of(const GradientPrologue& prologue) {
  return {prologue.grad_scale.data, prologue.output_scale.data, prologue.offset.data, prologue.output};
}

inline std::int64_t multiplier_of(const DepthwiseBackwardArguments& a) {
  return a.x.sizes[1] > 0 ? a.grad_y.sizes[1] / a.x.sizes[1] : 1;
}

inline std::size_t bytes_of_block_sums(DataType dtype, int values) {
  return dtype == DataType::float64 ? block_sums_bytes<double>(values) : block_sums_bytes<float>(values);
}

/// Memory for `rows` partial sums per split and channel.
inline void* take_partial_sums(Arena& arena, DataType dtype, const ItemWork& work, std::int64_t rows,
                               std::int64_t channels) {
  const auto bytes = static_cast<std::int64_t>(size_of(accumulation_type(dtype)));
  return arena.take<char>(work.splits * rows * channels * bytes);
}

/// The blocks' sums of each tap and of the bias, added up.
inline void launch_sum_of_weight_gradient(const DepthwiseBackwardArguments& a, const DepthwiseShape& shape,
                                          const void* partials, int splits, const Execution& execution) {
  SumPartialsParameters sum;
  sum.partials = partials;
  sum.splits = splits;
  sum.taps = shape.kernel_height * shape.kernel_width;
  sum.kernel_width = shape.kernel_width;
  sum.rows = sum.taps + 1;
  sum.channels = shape.channels;
  sum.weight = a.grad_weight;
  sum.bias = a.grad_bias.data;
  sum.lets_next_start = true;
  launch_sum_partials(kDepthwiseBackward, a.x.dtype, sum, execution.stream);
}

}  // namespace fusedsc::gpu
