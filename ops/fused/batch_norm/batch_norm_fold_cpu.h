/// The CPU's entry in the implementation list of folding BatchNorms.
#pragma once

#include "fusedsc/fused/batch_norm_fold.h"

namespace fusedsc {

Implementation<BatchNormFoldArguments> batch_norm_fold_cpu();

}  // namespace fusedsc
