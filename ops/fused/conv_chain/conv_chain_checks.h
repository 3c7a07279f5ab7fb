/// The checks of a chain's arguments.
#pragma once

#include "fusedsc/fused/conv_chain.h"

namespace fusedsc {

/// What can be judged without memory. Throws InvalidArgument.
void check_problem(const ConvChainArguments& chain);
void check_problem(const ConvChainBackwardArguments& gradients);

/// What needs the memory itself.
void check_memory(const ConvChainArguments& chain);
void check_memory(const ConvChainBackwardArguments& gradients);

}  // namespace fusedsc
