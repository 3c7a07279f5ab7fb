/// The CPU's entries in the implementation lists of BatchNorm's arithmetic and elementwise passes.
#pragma once

#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<BatchNormFinalizeArguments> batch_norm_finalize_cpu();
Implementation<BatchNormApplyArguments> batch_norm_apply_cpu();
Implementation<BatchNormReduceArguments> batch_norm_reduce_cpu();

}  // namespace fusedsc
