/// The checks of an inverted residual's arguments.
#pragma once

#include "fusedsc/fused/inverted_residual.h"

namespace fusedsc {

/// What can be judged without memory. Throws InvalidArgument.
void check_problem(const InvertedResidualArguments& block);
void check_problem(const InvertedResidualBackwardArguments& gradients);

/// What needs the memory itself.
void check_memory(const InvertedResidualArguments& block);
void check_memory(const InvertedResidualBackwardArguments& gradients);

}  // namespace fusedsc
