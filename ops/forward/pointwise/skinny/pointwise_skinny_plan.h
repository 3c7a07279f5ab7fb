/// What the launches of the pointwise kernels for few outputs work out alike.
#pragma once

#include <algorithm>
#include <string>

#include "fusedsc/forward/pointwise/skinny/pointwise_skinny.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu {

/// How the kernels see the tensors of a call.
struct SkinnyLayout {
  bool channels_inner = false;
  int vector = 1;  ///< elements of x side by side that are loaded at once; 0: the layout is not for them
};

/// Of x and of whatever else has its sizes; y and what has its sizes need positions at equal distances only.
SkinnyLayout skinny_layout(std::initializer_list<ConstTensorView> inputs,
                           std::initializer_list<ConstTensorView> outputs);

/// Empty, or why the kernels are not for a call whose weight is [outputs, channels].
std::string why_not_skinny(const ConstTensorView& x, const ConstTensorView& weight, std::int64_t groups, bool slides,
                           const SkinnyLayout& layout);

SkinnyPositions skinny_positions(const Sizes& x, const SkinnyLayout& layout);

/// Outputs that kernels are compiled for: at least `outputs`.
inline int skinny_outputs(std::int64_t outputs) { return outputs == 1 ? 1 : outputs == 2 ? 2 : kMostSkinnyOutputs; }

}  // namespace fusedsc::gpu
