/// Checks of what an operator runs with; of its arguments: common/checks.h.
#pragma once

#include <cstddef>

#include "fusedsc/runtime/execution.h"

namespace fusedsc {

void check_threads(int threads);

/// At least one thread, and a workspace of `needed` bytes at a 64-byte boundary.
void check_execution(const Execution& execution, std::size_t needed);

}  // namespace fusedsc
