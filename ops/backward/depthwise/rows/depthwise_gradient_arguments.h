/// Where a launch of row data reuse finds an operator's arguments, of either gradient.
#pragma once

#include "fusedsc/backward/depthwise/rows/depthwise_input_kernel.h"
#include "fusedsc/backward/depthwise/rows/depthwise_passes.h"
#include "fusedsc/backward/depthwise/rows/depthwise_weight_kernel.h"

namespace fusedsc::gpu {

/// Of a gradient of x. `stride`: a specialised kernel's items are made of whole strides of the padded input; 0: of
/// elements. `overlap`: see DepthwiseGrid.
inline DepthwiseGrid input_grid_of(const DepthwiseBackwardArguments& a, int stride, int overlap) {
  const auto blocks = [&](std::int64_t size, std::int64_t padding) {
    return stride == 0 || size == 0 ? size : (size + padding - 1) / stride + 1 - padding / stride;
  };
  return {a.x.sizes[0],
          a.x.sizes[1],
          blocks(a.x.sizes[2], a.window.padding.top),
          blocks(a.x.sizes[3], a.window.padding.left),
          static_cast<std::int64_t>(size_of(a.x.dtype)),
          a.grad_y.strides[1] < a.grad_y.strides[3],
          overlap};
}

/// Whether a thread's columns, `count` of grad_x, may be stored as one vector.
inline bool input_columns_join(const DepthwiseBackwardArguments& a, std::int64_t count) {
  return a.window.padding.left % a.window.stride[1] == 0 && columns_join(count, a.grad_x);
}

/// Memory for BatchNorm's sums, where they are wanted.
inline void* take_input_partials(const DepthwiseBackwardArguments& a, const ItemWork& work, Arena& arena) {
  return a.sums ? take_partial_sums(arena, a.x.dtype, work, 2, a.x.sizes[1]) : nullptr;
}

inline DepthwiseInputGradientParameters input_parameters_of(const DepthwiseBackwardArguments& a, const ItemWork& work,
                                                            bool join_columns, void* partials) {
  DepthwiseInputGradientParameters p;
  p.grad_y = a.grad_y;
  p.weight = a.weight;
  if (a.prologue) p.x = a.x;
  p.grad_add = a.grad_add;
  p.gradient_prologue = prologue_of(a.gradient_prologue);
  p.prologue = prologue_of(a.prologue);
  p.mean = a.sums.mean.data;
  p.grad_x = a.grad_x;
  p.partials = partials;
  p.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, a.window);
  p.shape.channels = static_cast<int>(a.x.sizes[1]);
  p.work = work;
  p.stride_height = Divisor(static_cast<std::uint32_t>(a.window.stride[0]));
  p.stride_width = Divisor(static_cast<std::uint32_t>(a.window.stride[1]));
  p.join_columns = join_columns;
  return p;
}

/// Of the gradients of weight and bias.
inline DepthwiseGrid weight_grid_of(const DepthwiseBackwardArguments& a, int overlap) {
  return {a.grad_y.sizes[0],
          a.grad_y.sizes[1],
          a.grad_y.sizes[2],
          a.grad_y.sizes[3],
          static_cast<std::int64_t>(size_of(a.x.dtype)),
          a.grad_y.strides[1] < a.grad_y.strides[3],
          overlap,
          true};
}

/// Memory for what blocks leave, [split][tap..., bias][channel]; none where there is one split, which has the result.
inline void* take_weight_partials(const DepthwiseBackwardArguments& a, const ItemWork& work, Arena& arena) {
  if (work.splits == 1) return nullptr;
  return take_partial_sums(arena, a.x.dtype, work, a.window.kernel[0] * a.window.kernel[1] + 1, a.grad_y.sizes[1]);
}

inline DepthwiseWeightGradientParameters weight_parameters_of(const DepthwiseBackwardArguments& a, const ItemWork& work,
                                                              std::int64_t tap_groups, void* partials) {
  DepthwiseWeightGradientParameters p;
  p.x = a.x;
  p.grad_y = a.grad_y;
  p.prologue = prologue_of(a.prologue);
  p.gradient_prologue = prologue_of(a.gradient_prologue);
  p.partials = partials;
  p.grad_weight = a.grad_weight;
  p.grad_bias = a.grad_bias.data;
  p.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, a.window);
  p.work = work;
  p.by_tap_groups = Divisor(static_cast<std::uint32_t>(tap_groups));
  return p;
}

}  // namespace fusedsc::gpu
