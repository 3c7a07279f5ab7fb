/// Blocks that are computed in another layout than that of x, where that is faster (fusedsc/fused/block_layout.h): from
/// copies of their ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "explain.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::aten {

/// What a block is, besides its x and its weights.
struct BlockTraits {
  Window window;
  bool is_dense = true, expands = false, differentiates = true;
};

class BlockLayout {
 public:
  /// That of x.
  BlockLayout() = default;
  /// Where sizes are symbolic, that of x.
  BlockLayout(const at::Tensor& x, const at::Tensor& dw_weight, const at::Tensor& pw_weight, const BlockTraits& traits);

  /// x as the block reads it, and what it makes of it as the caller expects it.
  at::Tensor inside(const at::Tensor& x) const;
  at::Tensor outside(const at::Tensor& y) const;

  /// Uninitialised, as inside() would be.
  at::Tensor empty_inside(const at::Tensor& x) const;
  /// Of what runs inside, as the block's.
  Explanation explained(Explanation explanation) const;

 private:
  std::optional<bool> channels_last_;  ///< inside; nothing: as outside
};

}  // namespace fusedsc::aten
