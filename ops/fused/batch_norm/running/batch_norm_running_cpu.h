/// The CPU's entry in the implementation list of moving running statistics.
#pragma once

#include "fusedsc/fused/batch_norm_running.h"

namespace fusedsc {

Implementation<BatchNormRunningArguments> batch_norm_running_cpu();

}  // namespace fusedsc
