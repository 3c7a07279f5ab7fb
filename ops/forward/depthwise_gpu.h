/// The GPU's entries in the depthwise forward implementation list.
#pragma once

#include "fusedsc/forward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseArguments> depthwise_gpu();

/// On Hopper GPUs. It has an entry where FUSEDSC_HOPPER is defined.
Implementation<DepthwiseArguments> depthwise_hopper();

/// The first of them that can, of arguments that one can.
inline Implementation<DepthwiseArguments> depthwise_of_gpu([[maybe_unused]] const DepthwiseArguments& a) {
#ifdef FUSEDSC_HOPPER
  if (const Implementation<DepthwiseArguments> hopper = depthwise_hopper(); hopper.why_not(a).empty()) return hopper;
#endif
  return depthwise_gpu();
}

}  // namespace fusedsc
