/// The gate of squeeze-and-excitation on a GPU.
#pragma once

#include "fusedsc/fused/squeeze_excite_gate.h"

namespace fusedsc::gpu {

void squeeze_excite_gate(const SqueezeExciteGateArguments& arguments, void* stream);

}  // namespace fusedsc::gpu
