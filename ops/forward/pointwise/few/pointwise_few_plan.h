/// What the launches of the pointwise kernels for few outputs work out alike.
#pragma once

#include <algorithm>
#include <string>

#include "fusedsc/forward/pointwise/few/pointwise_few.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu {

/// How the kernels see the tensors of a call.
struct FewLayout {
  bool channels_inner = false;
  int vector = 1;  ///< elements of x side by side that are loaded at once; 0: the layout is not for them
};

/// Of x and of whatever else has its sizes; y and what has its sizes need positions at equal distances only.
FewLayout few_layout(std::initializer_list<ConstTensorView> inputs, std::initializer_list<ConstTensorView> outputs);

/// Empty, or why the kernels are not for a call whose weight is [outputs, channels].
std::string why_not_few(const ConstTensorView& x, const ConstTensorView& weight, std::int64_t groups, bool slides,
                        const FewLayout& layout);

FewPositions few_positions(const Sizes& x, const FewLayout& layout);

/// Outputs that kernels are compiled for: at least `outputs`.
inline int few_outputs(std::int64_t outputs) { return outputs == 1 ? 1 : outputs == 2 ? 2 : kMostFewOutputs; }

}  // namespace fusedsc::gpu
