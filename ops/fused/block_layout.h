/// Which layout a block is best computed in. Where it is not that of x, copies of the block's ends (change_layout.h)
/// are worth it: what is inside, the block's own, is in that layout then.
#pragma once

#include <optional>

#include "fusedsc/common/problem.h"

namespace fusedsc {

/// What that depends on.
struct BlockShape {
  ConstTensorView x;  ///< its memory is not looked at
  Sizes dw_weight{};  ///< [E, 1, Kh, Kw]
  Sizes pw_weight{};  ///< [M, E, 1, 1]
  Window window;
  bool is_dense = true;        ///< the convolution behind is a pointwise one without groups
  bool expands = false;        ///< an expansion comes before: x is narrower than what is inside
  bool differentiates = true;  ///< a backward pass will follow
};

/// The layout that copies are worth on x's device, of GPUs the current one; nothing where they are not.
std::optional<Layout> layout_worth_copies(const BlockShape& block);

}  // namespace fusedsc
