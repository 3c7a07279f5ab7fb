#include "group_merge.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "fusedsc/common/status.h"
#include "fusedsc/fused/batch_norm_merge.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {
namespace {

/// Calls an operator of torch.distributed's, which has one result.
at::Tensor collective(const char* name, const at::Tensor& tensor, std::vector<c10::IValue> others) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  check(op.has_value(), "sync_group: this PyTorch has no operator ", name,
        "; use one that is built with torch.distributed, or leave sync_group out");
  torch::jit::Stack stack = {tensor};
  stack.insert(stack.end(), others.begin(), others.end());
  op->callBoxed(&stack);
  return stack.front().toTensor();
}

at::Tensor waited(const at::Tensor& tensor) { return collective("_c10d_functional::wait_tensor", tensor, {}); }

/// The memory of a vector as a tensor.
at::Tensor tensor_of(const ConstChannelVector& vector, const at::TensorOptions& options) {
  return at::from_blob(const_cast<void*>(vector.data), {vector.size}, options);
}

}  // namespace

GroupMerge::GroupMerge(std::string group, std::int64_t size, std::vector<std::int64_t> counts, const at::Tensor& x)
    : group_(std::move(group)),
      size_(size),
      counts_(std::move(counts)),
      vectors_(x.options().dtype(accumulation_type(x.scalar_type())).memory_format(std::nullopt)) {
  check(size_ > 0, "sync_size: it is ", size_, "; give the number of processes in the group");
  hooks_.statistics = [this](std::size_t stage, const BatchNormParameters& bn) {
    const at::Tensor count = at::full({1}, counts_[stage], vectors_);
    statistics(at::cat({tensor_of(bn.mean, vectors_), tensor_of(bn.invstd, vectors_), count}), bn);
  };
  hooks_.gradient = [this](std::size_t stage, const GradientSums& sums) {
    const at::Tensor count = at::full({1}, counts_[stage], vectors_);
    const at::Tensor all =
        reduced(at::cat({tensor_of(sums.grad, vectors_), tensor_of(sums.grad_times_centered, vectors_), count}));
    const GradientNormaliser& by = sums.normaliser;
    batch_norm_merge_gradient(
        {channels(all), by.weight, sums.mean, by.invstd, by.grad_scale, by.output_scale, by.offset},
        execution_on(all.device()));
  };
}

void GroupMerge::statistics(const at::Tensor& own, const BatchNormParameters& bn) const {
  const at::Tensor all = waited(collective("_c10d_functional::all_gather_into_tensor", own, {size_, group_}));
  batch_norm_merge(
      {channels(all), size_, bn.weight, bn.bias, bn.eps, bn.mean, bn.invstd, bn.variance, bn.scale, bn.shift},
      execution_on(all.device()));
}

at::Tensor GroupMerge::reduced(const at::Tensor& own) const {
  return waited(collective("_c10d_functional::all_reduce", own, {std::string("sum"), group_}));
}

void GroupMerge::statistics_of_nothing(const BatchNormParameters& bn) const {
  statistics(at::zeros({2 * bn.mean.size + 1}, vectors_), bn);
}

void GroupMerge::gradient_of_nothing(std::int64_t channels) const { reduced(at::zeros({2 * channels + 1}, vectors_)); }

}  // namespace fusedsc::aten
