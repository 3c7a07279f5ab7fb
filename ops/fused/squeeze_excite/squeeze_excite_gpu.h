/// The GPU's entries in the implementation lists of squeeze-and-excitation's passes.
#pragma once

#include "fusedsc/fused/squeeze_excite.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<SqueezeArguments> squeeze_gpu();
Implementation<ExciteArguments> excite_gpu();
Implementation<ExciteBackwardArguments> excite_backward_gpu();
Implementation<SqueezeBackwardArguments> squeeze_backward_gpu();

}  // namespace fusedsc
