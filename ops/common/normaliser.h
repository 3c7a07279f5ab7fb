/// A Normaliser on the CPU.
#pragma once

#include "fusedsc/common/problem.h"

namespace fusedsc {

/// Of the statistics of `count` values per channel (of none, as of one), in host memory.
void normalise(const Normaliser& by, const ConstChannelVector& mean, const ConstChannelVector& m2, std::int64_t count);

}  // namespace fusedsc
