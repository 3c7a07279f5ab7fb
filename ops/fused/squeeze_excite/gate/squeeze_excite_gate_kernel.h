/// One of the gate's two layers on a GPU: function(weight*x + bias) of few images. Some neighbouring threads have an
/// output, read its row of the weight once, and multiply it by a few images' inputs.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/least.h"
#include "fusedsc/fused/squeeze_excite_gate.h"

namespace fusedsc::gpu {

inline constexpr int kGateLanes = 32;                                               ///< of an output
inline constexpr int kGateThreads = 128, kGateOutputs = kGateThreads / kGateLanes;  ///< of a block
inline constexpr int kGateImages = 4;                                               ///< at a time

struct GateLayerParameters {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;  ///< [image][input], [output][input], [output]
  void* y = nullptr;                                            ///< [image][output]
  int images = 0, inputs = 0, outputs = 0;
  Divisor by_image_groups;                       ///< of blocks
  Activation activation = Activation::identity;  ///< of the first layer
  bool is_gate = false;                          ///< the second layer, which has another function
  GateFunction function = GateFunction::sigmoid;
};

/// kCount neighbours, 16 bytes of them at a time.
template <int kCount, class T, class A>
FUSEDSC_DEVICE void load_widened(const T* from, A (&to)[kCount]) {
  constexpr int kMost = 16 / static_cast<int>(sizeof(T)), kStep = kCount < kMost ? kCount : kMost;
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) load<kStep>(from + i).widen(to + i);
}

template <int kCount, class A>
FUSEDSC_DEVICE void apply_gate(GateFunction function, A (&z)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    z[i] = function == GateFunction::sigmoid ? sigmoid(z[i]) : clamped(z[i] + A(3), A(0), A(6)) * A(1.0 / 6);
  }
}

/// T: of the weight; From: of x; To: of y. What is between the layers are accumulators.
template <class T, class From, class To, int kVector>
FUSEDSC_DEVICE void gate_layer(const GateLayerParameters& p) {
  using A = Accumulator<T>;
  std::uint32_t group = block_index();
  const int lane = thread_index() % kGateLanes;
  const int own = static_cast<int>(p.by_image_groups.divide(group)) * kGateOutputs + thread_index() / kGateLanes;
  const int output = least(own, p.outputs - 1);  // all threads of a wave must come to its sums
  const int first = static_cast<int>(group) * kGateImages, images = least(p.images - first, kGateImages);
  const T* weight = static_cast<const T*>(p.weight) + static_cast<std::int64_t>(output) * p.inputs;
  const From* x = static_cast<const From*>(p.x) + static_cast<std::int64_t>(first) * p.inputs;
  A sums[kGateImages] = {};
#pragma unroll 2
  for (int k = lane * kVector; k < p.inputs; k += kGateLanes * kVector) {
    A factors[kVector];
    load_widened(weight + k, factors);
#pragma unroll
    for (int i = 0; i < kGateImages; ++i) {
      if (i >= images) break;
      A inputs[kVector];
      load_widened(x + static_cast<std::int64_t>(i) * p.inputs + k, inputs);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sums[i] += factors[j] * inputs[j];
    }
  }
  const A bias = p.bias != nullptr ? to_accumulator(static_cast<const T*>(p.bias)[output]) : A(0);
#pragma unroll
  for (int i = 0; i < kGateImages; ++i) sums[i] = wave_sum(sums[i], kGateLanes) + bias;
  if (p.is_gate) apply_gate(p.function, sums);
  else activate(p.activation, sums);
  if (lane != 0 || own >= p.outputs) return;
#pragma unroll
  for (int i = 0; i < kGateImages; ++i) {
    if (i >= images) break;
    from_accumulator(sums[i], static_cast<To*>(p.y)[static_cast<std::int64_t>(first + i) * p.outputs + output]);
  }
}

}  // namespace fusedsc::gpu
