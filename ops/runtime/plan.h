/// An operator's call, worked out: what is left is to give it memory, and to run it.
#pragma once

#include <cstddef>
#include <functional>

#include "fusedsc/runtime/checks.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

template <class Arguments>
struct Plan {
  std::size_t workspace_bytes = 0;  ///< the least that `run` needs
  /// As the implementation gave it: nothing is checked.
  std::function<void(const Arguments&, const Execution&)> unchecked_run;
  int threads = 1;  ///< of the execution that it was made for
  void (*check_memory)(const Arguments&) = nullptr;

  /// With the arguments that the plan was made for, or with others that differ from them in their addresses only, and
  /// not in the alignment of these up to 16 bytes. Throws InvalidArgument where memory is missing or overlaps.
  void run(const Arguments& arguments, const Execution& execution) const {
    if (check_memory != nullptr) check_memory(arguments);
    check_execution(execution, threads, workspace_bytes);
    unchecked_run(arguments, execution);
  }
};

/// What there is nothing to work out for.
template <class Arguments, void (*kRun)(const Arguments&, const Execution&)>
Plan<Arguments> plan_of_nothing(const Arguments&, int /*threads*/) {
  return {0, kRun};
}

}  // namespace fusedsc
