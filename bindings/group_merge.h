/// BatchNorm over the processes of a group: statistics and sums go from one to the others through PyTorch's functional
/// collectives, so that nothing of torch.distributed need be linked.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "fusedsc/fused/conv_chain.h"

namespace fusedsc::aten {

/// For a chain whose stages have `counts` values per channel in this process.
class GroupMerge {
 public:
  GroupMerge(std::string group, std::int64_t size, std::vector<std::int64_t> counts, const at::Tensor& x);

  /// As the library calls it; refers to this.
  const ConvChainMerge& hooks() const { return hooks_; }
  /// Those of a process without values, which takes part all the same. The stage's vectors need not be filled.
  void statistics_of_nothing(const BatchNormParameters& bn) const;
  void gradient_of_nothing(std::int64_t channels) const;

  GroupMerge(const GroupMerge&) = delete;
  GroupMerge& operator=(const GroupMerge&) = delete;

 private:
  void statistics(const at::Tensor& own, const BatchNormParameters& bn) const;
  at::Tensor reduced(const at::Tensor& own) const;

  std::string group_;
  std::int64_t size_;
  std::vector<std::int64_t> counts_;
  at::TensorOptions vectors_;
  ConvChainMerge hooks_;
};

}  // namespace fusedsc::aten
