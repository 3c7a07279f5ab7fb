/// How a convolution with checked arguments runs: empty problems on the CPU are settled here, everything else goes to
/// the first implementation of the family's list that can. The families name their arguments alike, hence templates.
#pragma once

#include "fusedsc/common/clear.h"
#include "fusedsc/runtime/checks.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// Of a forward pass: without an output element there is nothing to compute.
template <class Arguments>
requires requires(Arguments a) { a.y; }
bool is_empty(const Arguments& a) { return a.y.elements() == 0; }

/// Of a backward pass: without an element of grad_y, or without a gradient that is wanted.
template <class Arguments>
requires requires(Arguments a) { a.grad_y; }
bool is_empty(const Arguments& a) { return a.grad_y.elements() == 0 || (!a.grad_x && !a.grad_weight && !a.grad_bias); }

/// What an empty forward pass leaves behind: statistics of nothing.
template <class Arguments>
requires requires(Arguments a) { a.y; }
void clear_sums(const Arguments& a) {
  clear(a.statistics.mean);
  clear(a.statistics.m2);
}

/// What an empty backward pass leaves behind: sums over nothing.
template <class Arguments>
requires requires(Arguments a) { a.grad_y; }
void clear_sums(const Arguments& a) {
  clear(a.grad_weight);
  clear(a.grad_bias);
  clear(a.sums.grad);
  clear(a.sums.grad_times_centered);
}

/// Workspace that run_convolution needs.
template <class Arguments>
std::size_t convolution_workspace_bytes(const char* op, std::span<const Implementation<Arguments>> list,
                                        const Arguments& arguments, int threads) {
  check_threads(threads);
  const auto& implementation = choose(op, list, arguments);
  if (is_empty(arguments) && arguments.x.device == Device::cpu) return 0;
  return implementation.workspace_bytes(arguments, threads);
}

template <class Arguments>
void run_convolution(const char* op, std::span<const Implementation<Arguments>> list, const Arguments& arguments,
                     const Execution& execution) {
  const auto& implementation = choose(op, list, arguments);
  check_execution(execution, convolution_workspace_bytes(op, list, arguments, execution.threads));
  if (is_empty(arguments) && arguments.x.device == Device::cpu) return clear_sums(arguments);
  implementation.run(arguments, execution);
}

}  // namespace fusedsc
