/// What every operator does with its arguments: they are checked and planned, and the plan is run. Empty problems on
/// the CPU are settled here, everything else goes to the first implementation of the operator's list that can.
#pragma once

#include "fusedsc/common/clear.h"
#include "fusedsc/common/normaliser.h"
#include "fusedsc/runtime/checks.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

template <class Arguments>
struct Operator {
  const char* name;
  /// In order of preference; or null where the registry's kernels (tuning/role.h) are chosen from by the two below.
  std::span<const Implementation<Arguments>> (*implementations)();
  void (*check_problem)(const Arguments&);  ///< what can be judged without memory
  void (*check_memory)(const Arguments&);   ///< what cannot
  /// The tensors are on the CPU, and there is nothing to compute. (A GPU's memory is its kernels' to clear.)
  bool (*is_empty)(const Arguments&);
  void (*clear_results)(const Arguments&);  ///< what an empty problem leaves behind
  /// What follows from the results of tensors on the CPU, whichever implementation ran; or null.
  void (*finish)(const Arguments&) = nullptr;
  Plan<Arguments> (*plan)(const Arguments&, int threads) = nullptr;
  std::vector<Candidate> (*candidates)(const Arguments&, int threads) = nullptr;
};

/// Of arguments that are checked; where there is something to compute, make() has the plan for it.
template <class Arguments, class MakePlan>
Plan<Arguments> plan_checked(const Operator<Arguments>& op, const Arguments& arguments, int threads,
                             const MakePlan& make) {
  Plan<Arguments> plan;
  if (op.is_empty(arguments)) {
    plan.unchecked_run = [clear = op.clear_results](const Arguments& empty, const Execution&) { clear(empty); };
  } else {
    plan = make();
  }
  if (op.finish != nullptr) {
    plan.unchecked_run = [run = std::move(plan.unchecked_run), finish = op.finish](const Arguments& like,
                                                                                   const Execution& execution) {
      run(like, execution);
      finish(like);
    };
  }
  plan.threads = threads;
  plan.check_memory = op.check_memory;
  return plan;
}

template <class Arguments>
Plan<Arguments> plan_checked(const Operator<Arguments>& op, const Arguments& arguments, int threads) {
  return plan_checked(op, arguments, threads, [&] {
    return op.plan != nullptr ? op.plan(arguments, threads)
                              : choose(op.name, op.implementations(), arguments).plan_for(arguments, threads);
  });
}

/// `make`: as above, in place of the operator's own.
template <class Arguments, class... MakePlan>
Plan<Arguments> plan(const Operator<Arguments>& op, const Arguments& arguments, int threads, const MakePlan&... make) {
  check_threads(threads);
  op.check_problem(arguments);
  return plan_checked(op, arguments, threads, make...);
}

template <class Arguments>
void run(const Operator<Arguments>& op, const Arguments& arguments, const Execution& execution) {
  check_threads(execution.threads);
  op.check_problem(arguments);
  op.check_memory(arguments);
  const Plan<Arguments> plan = plan_checked(op, arguments, execution.threads);
  check_execution(execution, plan.threads, plan.workspace_bytes);
  plan.unchecked_run(arguments, execution);
}

template <class Arguments>
std::vector<Candidate> explain(const Operator<Arguments>& op, const Arguments& arguments, int threads = 1) {
  check_threads(threads);
  op.check_problem(arguments);
  return op.candidates != nullptr ? op.candidates(arguments, threads) : explain(op.implementations(), arguments);
}

// ---------------------------------------------------------------------------------------------- what users call,
// defined

/// name(), name_workspace_bytes() and plan_name(), as the operator's header declares them.
#define FUSEDSC_OPERATOR(name, Arguments, op)                                                          \
  void name(const Arguments& arguments, const Execution& execution) { run(op, arguments, execution); } \
  std::size_t name##_workspace_bytes(const Arguments& arguments, int threads) {                        \
    return plan(op, arguments, threads).workspace_bytes;                                               \
  }                                                                                                    \
  Plan<Arguments> plan_##name(const Arguments& arguments, int threads) { return plan(op, arguments, threads); }

/// And explain_name(), of one with a list of implementations.
#define FUSEDSC_LISTED_OPERATOR(name, Arguments, op) \
  FUSEDSC_OPERATOR(name, Arguments, op)              \
  std::vector<Candidate> explain_##name(const Arguments& arguments) { return explain(op, arguments); }

/// And explain_name(), of one with a role, whose choice may depend on the number of threads.
#define FUSEDSC_CHOOSING_OPERATOR(name, Arguments, op)                             \
  FUSEDSC_OPERATOR(name, Arguments, op)                                            \
  std::vector<Candidate> explain_##name(const Arguments& arguments, int threads) { \
    return explain(op, arguments, threads);                                        \
  }

// ------------------------------------------------------------------------------------------------------- convolutions
// The families name their arguments alike, hence templates.

/// Of a forward pass: without an output element there is nothing to compute.
template <class Arguments>
bool is_empty_forward(const Arguments& a) {
  return a.x.device == Device::cpu && a.y.elements() == 0;
}

/// What an empty forward pass leaves behind: statistics of nothing.
template <class Arguments>
void clear_statistics_of(const Arguments& a) {
  clear(a.statistics.mean);
  clear(a.statistics.m2);
}

/// On the CPU; a GPU's kernels do it themselves.
template <class Arguments>
void normalise_statistics_of(const Arguments& a) {
  const Statistics& statistics = a.statistics;
  if (a.x.device != Device::cpu || !statistics.normaliser) return;
  normalise(statistics.normaliser, statistics.mean, statistics.m2, a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3]);
}

/// Of a backward pass: without an element of grad_y, or without a gradient that is wanted.
template <class Arguments>
bool is_empty_backward(const Arguments& a) {
  return a.x.device == Device::cpu && (a.grad_y.elements() == 0 || (!a.grad_x && !a.grad_weight && !a.grad_bias));
}

/// What an empty backward pass leaves behind: sums over nothing.
template <class Arguments>
void clear_sums_of(const Arguments& a) {
  clear(a.grad_weight);
  clear(a.grad_bias);
  clear(a.sums.grad);
  clear(a.sums.grad_times_centered);
}

/// On the CPU; a GPU's kernels do it themselves.
template <class Arguments>
void normalise_sums_of(const Arguments& a) {
  if (a.x.device != Device::cpu || !a.sums.normaliser) return;
  normalise(a.sums, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3]);
}

}  // namespace fusedsc
