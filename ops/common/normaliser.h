/// Normaliser and GradientNormaliser on the CPU: in host memory.
#pragma once

#include "fusedsc/common/problem.h"

namespace fusedsc {

/// Of the statistics of `count` values per channel (of none, as of one).
void normalise(const Normaliser& by, const ConstChannelVector& mean, const ConstChannelVector& m2, std::int64_t count);

/// Likewise, of the sums.
void normalise(const GradientSums& sums, std::int64_t count);

}  // namespace fusedsc
