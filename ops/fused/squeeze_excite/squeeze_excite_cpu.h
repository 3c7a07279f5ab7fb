/// The CPU's entries in the implementation lists of squeeze-and-excitation's passes.
#pragma once

#include "fusedsc/fused/squeeze_excite.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<SqueezeArguments> squeeze_cpu();
Implementation<ExciteArguments> excite_cpu();
Implementation<ExciteBackwardArguments> excite_backward_cpu();
Implementation<SqueezeBackwardArguments> squeeze_backward_cpu();

}  // namespace fusedsc
