/// Checks of what an operator runs with; of its arguments: common/checks/checks.h.
#pragma once

#include <cstddef>

#include "fusedsc/runtime/execution.h"

namespace fusedsc {

void check_threads(int threads);

/// The threads that were planned with, and a workspace of `needed` bytes at a 64-byte boundary.
void check_execution(const Execution& execution, int threads, std::size_t needed);

}  // namespace fusedsc
