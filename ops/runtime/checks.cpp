#include "fusedsc/runtime/checks.h"

#include <cstdint>

#include "fusedsc/common/status.h"

namespace fusedsc {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;

}  // namespace

void check_threads(int threads) { check(threads >= 1, "threads: it is ", threads, "; it must be at least 1"); }

void check_execution(const Execution& execution, int threads, std::size_t needed) {
  check(execution.threads == threads, "threads: there are ", execution.threads, ", but the plan was made for ", threads,
        "; make one for as many as there are");
  check(execution.workspace_bytes >= needed, "workspace: it has ", execution.workspace_bytes,
        " bytes, but these arguments need ", needed, " with ", execution.threads,
        " threads: ask the operator's _workspace_bytes function with the same arguments");
  if (needed == 0) return;
  check(execution.workspace != nullptr, "workspace: its data is null; pass ", needed, " bytes");
  check(reinterpret_cast<std::uintptr_t>(execution.workspace) % kWorkspaceAlignment == 0,
        "workspace: its address is not a multiple of ", kWorkspaceAlignment, "; align it to that");
}

}  // namespace fusedsc
