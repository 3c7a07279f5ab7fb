/// Entries of implementation lists whose work is a chain of the plain operators.
#pragma once

#include <algorithm>
#include <utility>

#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// The plan of a chain: Chain(arguments, workspace), with plan(threads), which gives the plans of the operators in it
/// and their workspace_bytes(), and run(plans, execution). The chain is built without a workspace first: its operators
/// are planned with addresses of memory that is not there yet.
template <class Chain, class Arguments>
Plan<Arguments> plan_of_chain(const Arguments& arguments, int threads) {
  const Chain measured(arguments, nullptr);
  auto plans = measured.plan(threads);
  const std::size_t workspace_bytes = measured.arena.used() + plans.workspace_bytes();
  return {workspace_bytes, [plans = std::move(plans)](const Arguments& like, const Execution& execution) {
            Chain(like, execution.workspace).run(plans, execution);
          }};
}

/// The entry of a chain, if nothing else is said "composed".
template <class Chain, class Arguments>
Implementation<Arguments> composed(const char* name, std::string (*why_not)(const Arguments&)) {
  return {.name = name, .why_not = why_not, .plan = plan_of_chain<Chain, Arguments>};
}
template <class Chain, class Arguments>
Implementation<Arguments> composed(std::string (*why_not)(const Arguments&)) {
  return composed<Chain, Arguments>("composed", why_not);
}

/// The operators of a chain run one after the other in the same workspace.
template <class... Plans>
std::size_t most_workspace_bytes(const Plans&... plans) {
  return std::max({plans.workspace_bytes...});
}

}  // namespace fusedsc
