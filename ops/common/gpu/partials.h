/// Launches of the kernels that put partial results together (partials_kernel.h).
#pragma once

#include "fusedsc/common/gpu/partials_kernel.h"

namespace fusedsc::gpu {

/// The sums of `sum.partials`, as elements of `dtype`. How many threads share an element is chosen here.
void launch_sum_partials(const char* name, DataType dtype, SumPartialsParameters sum, void* stream);

/// The moments of `merge.partials`, of `dtype`, which they have too.
void launch_merge_moments(const char* name, DataType dtype, MergeMomentsParameters merge, void* stream);

}  // namespace fusedsc::gpu
