/// Passes: classes made of (arguments, threads, workspace) and, where there is something to choose, of how the work is
/// cut up; with workspace_bytes() and run(execution). Templates over the type that is computed in, which is double for
/// float64 and float for everything else.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_RUNTIME_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_RUNTIME_PASS_INL_H_
#undef FUSEDSC_RUNTIME_PASS_INL_H_
#else
#define FUSEDSC_RUNTIME_PASS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/data_type.h"
#include "fusedsc/runtime/plan.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// A pass is made without a workspace first, to measure it. To make one again costs less than to keep it: it is a few
/// sums and divisions.
template <class Pass, class Arguments, class... Tiling>
Plan<Arguments> plan_of_pass(const Arguments& arguments, int threads, const Tiling&... tiling) {
  return {Pass(arguments, threads, nullptr, tiling...).workspace_bytes(),
          [tiling...](const Arguments& like, const Execution& execution) {
            Pass(like, execution.threads, execution.workspace, tiling...).run(execution);
          }};
}

/// Of the pass for the arguments' type.
template <template <class> class Pass, class Arguments, class... Tiling>
Plan<Arguments> plan_of_pass_by_type(const Arguments& arguments, int threads, const Tiling&... tiling) {
  if (arguments.x.dtype == DataType::float64) return plan_of_pass<Pass<double>>(arguments, threads, tiling...);
  return plan_of_pass<Pass<float>>(arguments, threads, tiling...);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
