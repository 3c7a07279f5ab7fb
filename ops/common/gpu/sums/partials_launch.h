/// Launches of the second passes over partial results (partials_kernel.h).
#pragma once

#include "fusedsc/common/gpu/sums/partials_kernel.h"

namespace fusedsc::gpu {

/// Results have the type `dtype`. Sets the lanes and divisors of `sum`; `name` is who asks.
void launch_sum_partials(const char* name, DataType dtype, SumPartialsParameters sum, void* stream);

/// partials: [split][mean, m2, count][channel], of the type `dtype`, of `count` values per channel.
void launch_merge_moments(const char* name, DataType dtype, const void* partials, int splits,
                          const Statistics& statistics, std::int64_t count, void* stream);

/// partials: [split][grad, grad_times_centered][channel], of the type that sums of x have; x: whose gradient's they
/// are.
void launch_gradient_sums(const char* name, const void* partials, int splits, const GradientSums& sums,
                          const ConstTensorView& x, void* stream);

}  // namespace fusedsc::gpu
