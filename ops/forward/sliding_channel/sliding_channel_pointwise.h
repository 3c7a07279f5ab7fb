/// A sliding-channel convolution in the words of the pointwise operator.
#pragma once

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

/// The same with the given weight. Without `windows`, that is an expanded one (sliding_channel_weight.h).
inline PointwiseArguments pointwise_of(const SlidingChannelArguments& a, const ConstTensorView& weight,
                                       const SlidingChannels& windows = {}) {
  PointwiseArguments pointwise;
  pointwise.x = a.x;
  pointwise.weight = weight;
  pointwise.bias = a.bias;
  pointwise.prologue = a.prologue;
  pointwise.epilogue = a.epilogue;
  pointwise.statistics = a.statistics;
  pointwise.y = a.y;
  pointwise.allow_tf32 = a.allow_tf32;
  pointwise.windows = windows;
  return pointwise;
}

}  // namespace fusedsc
