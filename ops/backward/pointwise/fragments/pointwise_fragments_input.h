/// The input gradient as a product by fragments.
#pragma once

#include "fusedsc/backward/pointwise/fragments/pointwise_fragments_input_sink.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_pass.h"

namespace fusedsc::gpu {

struct InputGradientFragments {
  using Parameters = PointwiseInputGradientParameters;
  static constexpr bool kInputGradient = true;
  template <class T, class Sweep, bool kFused, bool kClamps>
  using Sink = FragmentInputSink<T, Sweep, kFused, kClamps>;
  static constexpr int kExtras = 2;
  FUSEDSC_DEVICE static PointwiseMatrix& extra(Parameters& p, int i) { return i == 0 ? p.x : p.grad_add; }
  FUSEDSC_DEVICE static OutputMatrix& result(Parameters& p) { return p.grad_x; }
};

}  // namespace fusedsc::gpu
