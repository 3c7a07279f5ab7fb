/// When a block of contiguous tensors is better computed from channels_last copies of its ends (change_layout.h): its
/// inner tensors, which are its own, are channels_last then.
#pragma once

#include <string>

#include "fusedsc/common/problem.h"

namespace fusedsc {

/// What that depends on.
struct CopiedBlock {
  ConstTensorView x;  ///< its memory is not looked at
  Sizes dw_weight{};  ///< [E, 1, Kh, Kw]
  Sizes pw_weight{};  ///< [M, E, 1, 1]
  Window window;
  bool is_dense = true;        ///< the convolution behind is a pointwise one without groups
  bool expands = false;        ///< an expansion comes before: x is narrower than what is inside
  bool differentiates = true;  ///< a backward pass will follow
};

/// Empty, or the reason why the block is computed as it is. Asks the current device.
std::string why_not_channels_last_copies(const CopiedBlock& block);

}  // namespace fusedsc
