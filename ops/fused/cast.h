/// Runs of elements cast to another type, as a block's weights are between those of the optimizer and those of the
/// tensors: on a GPU one launch, in which each takes as long as all. A sliding-channel convolution's weight can become
/// a pointwise one's on the way, and its gradient be had back from that one's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

struct CastArguments {
  std::vector<std::pair<ConstTensorView, TensorView>> runs = {};  ///< [1, 1, 1, elements] each, densely; from and to
  /// Not empty: the last run is a sliding-channel convolution's weight, [M, width], and is cast to the pointwise one
  /// that convolves alike, [M, channels], with zeros outside of the windows (as expand_sliding_channels() has it).
  SlidingChannels windows = {};
  bool gathers = false;  ///< the other way round: of such a pointwise one, what is in the windows
};

/// Empty, or the reason why there is no kernel for it.
std::string why_not_cast(const CastArguments& arguments);
/// Throws Unsupported where there is none, naming the reason.
void cast(const CastArguments& arguments, const Execution& execution);

}  // namespace fusedsc
