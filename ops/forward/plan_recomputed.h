/// What a backward pass computes again, by the kernel and config that its forward pass took.
#pragma once

#include <optional>

#include "fusedsc/tuning/role.h"

namespace fusedsc::tuning {

/// The plan of `arguments`, of which a forward pass has the result as `first`, beside its statistics: with what is
/// chosen for `first`, so that the result has the same bits. Where that cannot run them, with what is chosen for
/// themselves. Nothing is recorded: whoever measures `first` measures this, too.
template <class Arguments>
Plan<Arguments> plan_recomputed(const Role<Arguments>& role, const Arguments& arguments, const Arguments& first,
                                int threads) {
  const auto [choice, why, microseconds] = find(role, first, threads);
  if (!choice || !choice.kernel->unsupported(arguments).empty()) return plan_chosen(role, arguments, threads);
  std::optional<Plan<Arguments>> plan;
  try {
    const PlanningWithin within;
    const CompilingAllowed compiling(why == std::string_view("forced"));
    plan = choice.kernel->plan(arguments, choice.config, threads);
  } catch (const Unsupported&) {
    return plan_chosen(role, arguments, threads);
  }
  plan->unchecked_run = [chosen = Chosen{role.name, choice.kernel->name, choice.config, why, microseconds},
                         run = std::move(plan->unchecked_run)](const Arguments& like, const Execution& execution) {
    note(chosen, input_of(like));
    run(like, execution);
  };
  return *std::move(plan);
}

}  // namespace fusedsc::tuning
