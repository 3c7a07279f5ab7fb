/// What a chain's kernels, fake kernels and gradients make of its arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "block_layout.h"
#include "fusedsc/fused/conv_chain.h"
#include "operators.h"

namespace fusedsc::aten {

/// A chain's arguments besides its tensors. The lists have an element for each stage; strides and dilations two,
/// paddings four (left, right, top, bottom).
struct ConvChainOptions {
  BoolList has_bn;
  StringList activations;
  std::vector<std::int64_t> strides, paddings, dilations, groups;
  bool residual;
  std::string input_activation;

  std::size_t stages() const { return has_bn.size(); }
  Activation activation(std::size_t stage) const { return activation_from_name(activations.get(stage)); }
  bool reads_raw(std::size_t stage) const {
    return stage + 1 < stages() || has_bn.get(stage) || activation(stage) != Activation::identity;
  }
  IntArrayRef stride(std::size_t stage) const { return IntArrayRef(strides).slice(2 * stage, 2); }
  IntArrayRef padding(std::size_t stage) const { return IntArrayRef(paddings).slice(4 * stage, 4); }
  IntArrayRef dilation(std::size_t stage) const { return IntArrayRef(dilations).slice(2 * stage, 2); }
};

/// A chain's tensors besides x. `bn_parameters` has weight and bias of each stage's BatchNorm.
struct ConvChainTensors {
  at::TensorList weights;
  const TensorOptionals& biases;
  const TensorOptionals& bn_parameters;
};

/// The public operator, of weights and biases of such types.
Tensor conv_chain_of_types(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                           const BoolList& has_bn, const TensorOptionals& bns, bool training,
                           at::ArrayRef<double> momenta, at::ArrayRef<double> eps, const StringList& activations,
                           IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
                           bool residual, const OptionalTensor& branch_scale, std::string_view input_activation,
                           std::optional<bool> recompute, std::optional<std::string_view> sync_group,
                           std::int64_t sync_size, WeightTypes types);

/// Throws InvalidArgument where the lists have not as many elements as there are stages.
void check_list_sizes(const ConvChainTensors& tensors, const ConvChainOptions& options);

/// Whether the stage is a pointwise convolution; if not, a depthwise one.
bool is_pointwise_stage(const Tensor& weight, const ConvChainOptions& options, std::size_t stage);

/// In which layout the chain is computed.
BlockLayout layout_of_chain(const Tensor& x, at::TensorList weights, const ConvChainOptions& options,
                            bool differentiates);

/// The sizes of each stage's result. Throws InvalidArgument, naming the stage, where something does not fit.
std::vector<SymSizes> conv_chain_sizes(const Tensor& x, const ConvChainTensors& tensors,
                                       const ConvChainOptions& options);
/// What forward asks for besides, where statistics are taken over so many processes.
void check_conv_chain(const Tensor& x, const ConvChainOptions& options, const std::vector<SymSizes>& sizes,
                      const OptionalTensor& statistics, at::ArrayRef<double> eps, const OptionalTensor& branch_scale,
                      std::int64_t processes);
/// Which implementations run, of statistics that are the batch's or given: in eval mode with nothing kept.
Explanation explanation_of_chain(const Tensor& x, const ConvChainTensors& tensors, const ConvChainOptions& options,
                                 at::ArrayRef<double> eps, const OptionalTensor& branch_scale, bool training);
/// Channels of all the BatchNorms together, in the order of `statistics`.
c10::SymInt channels_of_batch_norms(const ConvChainOptions& options, const std::vector<SymSizes>& sizes);

struct CastConvolutions {
  std::vector<Tensor> weights;
  TensorOptionals biases;
};

/// Weights and biases in x's dtype where fusedsc.fold_batch_norms keeps them; None where there are none of another
/// dtype, or where nothing of them is kept.
std::optional<CastConvolutions> kept_chain_casts(const Tensor& x, at::TensorList weights,
                                                 const TensorOptionals& biases);

/// Weights and biases of another dtype than x, as autocast leaves them: cast, they lie side by side in one tensor.
struct ConvChainCasts {
  static constexpr std::int64_t kAsItIs = -1;

  std::vector<std::int64_t> weights, biases;  ///< of each stage: where it begins; or kAsItIs
  std::int64_t elements = 0;                  ///< of all of them; 0: each has x's dtype
  bool has_gaps = false;                      ///< between them

  ConvChainCasts(const Tensor& x, const ConvChainTensors& tensors);
};

/// The operands as kernels read them. The kernels' arguments are views of these. Without `bn_parameters` where the
/// statistics are folded.
struct ConvChainOperands {
  Tensor x, statistics, branch_scale;
  std::vector<Tensor> weights, biases, bn_parameters;
  ConvChainCasts casts;
  Tensor joined;  ///< the cast ones; undefined where there are none

  /// `raw` as the operators have it, or nothing: then nothing is kept.
  ConvChainOperands(const Tensor& x, const ConvChainTensors& tensors, const Tensor& statistics,
                    const OptionalTensor& branch_scale, const ConvChainOptions& options, at::TensorList raw,
                    bool are_folded = false);

  /// Forward: before anything reads the weights.
  void cast();
  /// Refers to the operands.
  ConvChainArguments arguments(const ConvChainOptions& options, bool training) const;

 private:
  at::TensorList raw_;
};

}  // namespace fusedsc::aten
