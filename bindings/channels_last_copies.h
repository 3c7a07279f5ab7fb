/// Blocks of contiguous tensors that are computed from channels_last copies of their ends, where that is faster
/// (fusedsc/fused/channels_last_copies.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "explain.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::aten {

/// What a block is, besides its x and its weights.
struct BlockTraits {
  Window window;
  bool is_dense = true, expands = false, differentiates = true;
};

/// Whether the block is computed so. Sizes may be symbolic: then it is not.
bool is_by_channels_last_copies(const at::Tensor& x, const at::Tensor& dw_weight, const at::Tensor& pw_weight,
                                const BlockTraits& traits);

/// Of what runs with the copies, as the block's.
Explanation of_channels_last_copies(Explanation explanation);

}  // namespace fusedsc::aten
