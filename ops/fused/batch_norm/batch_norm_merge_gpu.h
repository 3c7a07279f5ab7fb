/// The GPU's entries in the implementation lists of BatchNorm over several processes.
#pragma once

#include "fusedsc/fused/batch_norm_merge.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<BatchNormMergeArguments> batch_norm_merge_gpu();
Implementation<BatchNormMergeGradientArguments> batch_norm_merge_gradient_gpu();

}  // namespace fusedsc
