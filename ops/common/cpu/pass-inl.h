/// Passes: class templates over the type that is computed in, made of (arguments, threads, workspace), with
/// workspace_bytes() and run(execution). float64 is computed in double, everything else in float.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_PASS_INL_H_
#undef FUSEDSC_COMMON_CPU_PASS_INL_H_
#else
#define FUSEDSC_COMMON_CPU_PASS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/data_type.h"
#include "fusedsc/runtime/execution.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

template <template <class> class Pass, class Arguments>
std::size_t pass_workspace_bytes(const Arguments& arguments, int threads) {
  if (arguments.x.dtype == DataType::float64) return Pass<double>(arguments, threads, nullptr).workspace_bytes();
  return Pass<float>(arguments, threads, nullptr).workspace_bytes();
}

template <template <class> class Pass, class Arguments>
void run_pass(const Arguments& arguments, const Execution& execution) {
  if (arguments.x.dtype == DataType::float64) {
    return Pass<double>(arguments, execution.threads, execution.workspace).run(execution);
  }
  Pass<float>(arguments, execution.threads, execution.workspace).run(execution);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
