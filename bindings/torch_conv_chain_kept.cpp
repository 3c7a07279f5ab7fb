/// Chains whose numbers and names are kept under a number of their own: a network calls each of its blocks with the
/// same ones in every step, and taking Python's lists apart takes as long as a third of the call.
#include <torch/library.h>

#include <ATen/autocast_mode.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "conv_chain_operands.h"
#include "fusedsc/common/status.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using Numbers = std::vector<std::int64_t>;
using Words = std::tuple<Numbers, std::vector<std::string>, Numbers, Numbers, Numbers, Numbers, bool, std::string>;

/// Never forgotten: a process has as many as it has different blocks.
class KeptChains {
 public:
  std::int64_t keep(ConvChainOptions options) {
    const auto& o = options;
    Words words{{}, {}, o.strides, o.paddings, o.dilations, o.groups, o.residual, o.input_activation};
    for (const bool has_bn : o.has_bn) std::get<0>(words).push_back(has_bn);
    for (const auto& activation : o.activations) std::get<1>(words).push_back(activation);
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = numbers_.emplace(std::move(words), static_cast<std::int64_t>(chains_.size()));
    if (is_new) chains_.push_back(std::move(options));
    return place->second;
  }

  const ConvChainOptions& at(std::int64_t number) const {
    const std::lock_guard lock(mutex_);
    check(number >= 0 && number < static_cast<std::int64_t>(chains_.size()), "chain: there is none with the number ",
          number, "; give one that _keep_conv_chain returned in this process");
    return chains_[static_cast<std::size_t>(number)];
  }

 private:
  mutable std::mutex mutex_;
  std::map<Words, std::int64_t> numbers_;
  std::deque<ConvChainOptions> chains_;  // which stay where they are
};

KeptChains& kept_chains() {
  static auto* const chains = new KeptChains;  // never destroyed: threads may still run when the program ends
  return *chains;
}

std::int64_t keep_conv_chain(const BoolList& has_bn, const StringList& activations, IntArrayRef strides,
                             IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups, bool residual,
                             std::string_view input_activation) {
  return kept_chains().keep({has_bn.copy(), activations.copy(), strides.vec(), paddings.vec(), dilations.vec(),
                             groups.vec(), residual, std::string(input_activation)});
}

Tensor conv_chain_kept(const Tensor& x, const TensorOptionals& convolutions, const TensorOptionals& bns,
                       std::int64_t chain, bool training, at::ArrayRef<double> momenta, at::ArrayRef<double> eps,
                       const OptionalTensor& branch_scale, std::optional<bool> recompute,
                       std::optional<std::string_view> sync_group, std::int64_t sync_size, WeightTypes types) {
  const ConvChainOptions& o = kept_chains().at(chain);
  check(convolutions.size() == 2 * o.stages(), "convolutions: it has ", convolutions.size(),
        " elements; give weight and bias of each of the ", o.stages(), " stages");
  std::vector<Tensor> weights;
  weights.reserve(o.stages());
  TensorOptionals biases;
  biases.reserve(o.stages());
  for (std::size_t i = 0; i < o.stages(); ++i) {
    OptionalTensor weight = convolutions.get(2 * i);
    check(weight.has_value(), "convolutions: the weight of stage ", i, " is None; give a tensor");
    weights.push_back(*std::move(weight));
    biases.push_back(convolutions.get(2 * i + 1));
  }
  return conv_chain_of_types(x, weights, biases, o.has_bn, bns, training, momenta, eps, o.activations, o.strides,
                             o.paddings, o.dilations, o.groups, o.residual, branch_scale, o.input_activation, recompute,
                             sync_group, sync_size, types);
}

Tensor conv_chain_kept_composite(const Tensor& x, const TensorOptionals& convolutions, const TensorOptionals& bns,
                                 std::int64_t chain, bool training, at::ArrayRef<double> momenta,
                                 at::ArrayRef<double> eps, const OptionalTensor& branch_scale,
                                 std::optional<bool> recompute, std::optional<std::string_view> sync_group,
                                 std::int64_t sync_size) {
  return conv_chain_kept(x, convolutions, bns, chain, training, momenta, eps, branch_scale, recompute, sync_group,
                         sync_size, WeightTypes::of_x);
}

template <at::DeviceType device>
Tensor conv_chain_kept_autocast(const Tensor& x, const TensorOptionals& convolutions, const TensorOptionals& bns,
                                std::int64_t chain, bool training, at::ArrayRef<double> momenta,
                                at::ArrayRef<double> eps, const OptionalTensor& branch_scale,
                                std::optional<bool> recompute, std::optional<std::string_view> sync_group,
                                std::int64_t sync_size) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const Tensor cast = at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
  return conv_chain_kept(cast, convolutions, bns, chain, training, momenta, eps, branch_scale, recompute, sync_group,
                         sync_size, WeightTypes::cast_too);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CompositeImplicitAutograd, m) {
  m.impl("_conv_chain_kept", translated<conv_chain_kept_composite>);
}
TORCH_LIBRARY_IMPL(fusedsc, CompositeExplicitAutograd, m) { m.impl("_keep_conv_chain", translated<keep_conv_chain>); }
TORCH_LIBRARY_IMPL(fusedsc, AutocastCPU, m) {
  m.impl("_conv_chain_kept", translated<conv_chain_kept_autocast<at::kCPU>>);
}
TORCH_LIBRARY_IMPL(fusedsc, AutocastCUDA, m) {
  m.impl("_conv_chain_kept", translated<conv_chain_kept_autocast<at::kCUDA>>);
}

}  // namespace fusedsc::aten
