/// The checks of the arguments of a gated residual's halves.
#pragma once

#include "fusedsc/fused/gated_residual.h"

namespace fusedsc {

// What can be judged without memory, and what needs the memory itself. Throw InvalidArgument.

void check_features_problem(const GatedResidualArguments& arguments);
void check_projection_problem(const GatedResidualArguments& arguments);
void check_projection_problem(const GatedResidualBackwardArguments& arguments);
void check_features_problem(const GatedResidualBackwardArguments& arguments);

void check_features_memory(const GatedResidualArguments& arguments);
void check_projection_memory(const GatedResidualArguments& arguments);
void check_projection_memory(const GatedResidualBackwardArguments& arguments);
void check_features_memory(const GatedResidualBackwardArguments& arguments);

}  // namespace fusedsc
