/// The CPU's entries in the implementation lists of the two elementwise BatchNorm passes.
#pragma once

#include "fusedsc/fused/batch_norm_seam.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<BatchNormApplyArguments> batch_norm_apply_cpu();
Implementation<BatchNormReduceArguments> batch_norm_reduce_cpu();

}  // namespace fusedsc
