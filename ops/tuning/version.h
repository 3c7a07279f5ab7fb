/// Counts changes of what is chosen: plans that were made before one may be outdated.
#pragma once

#include <cstdint>

namespace fusedsc::tuning {

std::uint64_t choices_version();

/// By whatever forces another kernel, or measures or forgets which is the fastest.
void choices_changed();

}  // namespace fusedsc::tuning
