/// How chains of convolutions are verified, on the CPU or on a GPU.
#pragma once

#include "ops/conv_chain_tensors.h"
#include "ops/forced_choices.h"
#include "ops/verify.h"

namespace fusedsc::reference {

constexpr Operator<ConvChainArguments> kConvChain{conv_chain, conv_chain_workspace_bytes};
constexpr Operator<ConvChainBackwardArguments> kConvChainBackward{conv_chain_backward,
                                                                  conv_chain_backward_workspace_bytes};

/// What depends on the batch's statistics depends on how their partial sums were added.
inline Output::Kind after_statistics(const ConvChainCase& chain) {
  return chain.training ? Output::Kind::partial_sums : Output::Kind::same_bits;
}

inline void verify_conv_chain(const ConvChainCase& chain) {
  ConvChainTensors tensors(chain);
  ConvChainArguments arguments = tensors.arguments(chain);
  ConvChain reference = tensors.reference(chain);
  reference.stores_activated = !chain.keeps_raw && !chain.training;
  const ConvChainOutputs expected = forward(reference);
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    ConvStageTensors& own = tensors.stages[i];
    const std::string name = "stages[" + std::to_string(i) + "].";
    if (!chain.keeps_raw) arguments.stages[i].raw = {};
    if (arguments.stages[i].raw) {
      outputs.emplace_back(name + "raw", own.raw, expected.raw[i], after_statistics(chain));
    }
    if (!chain.training || !chain.stages[i].has_batch_norm) continue;
    const BatchStatistics& statistics = expected.statistics[i];
    outputs.emplace_back(name + "mean", own.mean, statistics.mean);
    outputs.emplace_back(name + "invstd", own.invstd, statistics.invstd);
    outputs.emplace_back(name + "variance", own.variance, statistics.variance);
    const Affine map = own.affine({statistics.mean, statistics.invstd});
    outputs.emplace_back(name + "scale", own.scale, map.scale);
    outputs.emplace_back(name + "shift", own.shift, map.shift);
  }
  outputs.emplace_back("y", tensors.y, expected.y, after_statistics(chain));
  verify(kConvChain, arguments, outputs);
  if (!chain.training) verify_once(kConvChain, tensors.folded(arguments), outputs, "folded");
}

/// In eval mode, with nothing kept.
inline void verify_conv_chain_inference(ConvChainCase chain) {
  chain.training = chain.keeps_raw = false;
  verify_conv_chain(chain);
}

/// A backward pass, and what is expected of each gradient that it can be asked for.
struct ExpectedGradients {
  ConvChainBackwardArguments all;
  std::vector<Output> outputs;
  std::vector<ConvChainBackwardArguments> alone;  ///< each output's, and no other

  ExpectedGradients(ConvChainBackward& tensors, const ConvChainCase& chain) : all(tensors.arguments(chain)) {
    std::vector<Array> raw;
    for (const ConvStageTensors& stage : tensors.forward.stages) raw.push_back(stage.raw.values());
    const ConvChainGradients bounds = backward(tensors.forward.reference(chain), raw, tensors.grad_y.values());
    none_ = all;
    none_.grad_x = {};
    for (ConvStageGradients& stage : none_.stages) stage = {};
    expect({"grad_x", tensors.grad_x, bounds.x, after_statistics(chain)},
           [&](ConvChainBackwardArguments& wanted) { wanted.grad_x = all.grad_x; });
    for (std::size_t i = 0; i < chain.stages.size(); ++i) {
      expect_stage(i, tensors.stages[i], bounds.stages[i], chain.stages[i].has_batch_norm);
    }
  }

 private:
  void expect_stage(std::size_t i, ConvChainBackward::Stage& own, const ConvChainGradients::Stage& bounds,
                    bool has_batch_norm) {
    const std::string name = "stages[" + std::to_string(i) + "].grad_";
    const ConvStageGradients& from = all.stages[i];
    expect({name + "weight", own.weight, bounds.weight, Output::Kind::partial_sums},
           [&](ConvChainBackwardArguments& wanted) { wanted.stages[i].weight = from.weight; });
    expect({name + "bias", own.bias, bounds.bias},
           [&](ConvChainBackwardArguments& wanted) { wanted.stages[i].bias = from.bias; });
    if (!has_batch_norm) return;
    expect({name + "bn.weight", own.bn_weight, bounds.bn.weight},
           [&](ConvChainBackwardArguments& wanted) { wanted.stages[i].bn.weight = from.bn.weight; });
    expect({name + "bn.bias", own.bn_bias, bounds.bn.bias},
           [&](ConvChainBackwardArguments& wanted) { wanted.stages[i].bn.bias = from.bn.bias; });
  }

  template <class Want>
  void expect(const Output& output, const Want& want) {
    outputs.push_back(output);
    want(alone.emplace_back(none_));
  }

  ConvChainBackwardArguments none_;
};

/// All gradients; and with frozen parameters, through which the gradient passes all the same.
inline void verify_conv_chain_backward(const ConvChainCase& chain) {
  ConvChainBackward tensors(chain);
  const ExpectedGradients expected(tensors, chain);
  verify(kConvChainBackward, expected.all, expected.outputs);
  verify(kConvChainBackward, expected.alone.front(), {expected.outputs.front()});
  if (chain.training) return;
  ConvChainBackwardArguments folded = expected.all;
  folded.forward = tensors.forward.folded(folded.forward, true);
  verify_once(kConvChainBackward, folded, expected.outputs, "folded");
}

/// Each gradient for itself: steps that it does not need are left out.
inline void verify_gradients_alone(const ConvChainCase& chain) {
  ConvChainBackward tensors(chain);
  const ExpectedGradients expected(tensors, chain);
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    verify(kConvChainBackward, expected.alone[i], {expected.outputs[i]});
  }
}

/// By each kernel of the registry that can, in every mode; of some of the cases, one of `every`.
inline void verify_conv_chains_by_force(DataType dtype, std::size_t every) {
  ForcedRuns forward, inference, backward;
  std::size_t number = 0;
  for_each_case(conv_chain_edges(dtype), [&](const ConvChainCase& chain) {
    if (++number % every != 0) return;
    const auto by_all = [](const char* role, const auto& verify, ForcedRuns& runs) {
      verify_by_some(role, kAllConfigs, 0, verify, runs);
    };
    by_all(
        "conv_chain.forward", [&] { verify_conv_chain(chain); }, forward);
    by_all(
        "conv_chain.forward", [&] { verify_conv_chain_inference(chain); }, inference);
    by_all(
        "conv_chain.backward", [&] { verify_conv_chain_backward(chain); }, backward);
  });
  EXPECT_GT(forward["composed"], 0);
  EXPECT_GT(inference["composed"], inference["inference"]);  // there are branch scales
  EXPECT_GT(inference["inference"], 0);
  EXPECT_GT(backward["composed"], 0);
}

inline void verify_empty_conv_chain(DataType dtype) {
  for (ConvChainCase chain : usual_chains()) {
    chain.dtype = dtype;
    chain.x[0] = 0;
    for (const bool keeps_raw : {true, false}) {
      ConvChainTensors forward(chain);
      ConvChainArguments arguments = forward.arguments(chain);
      arguments.y.data = nullptr;  // as memory without elements may be
      for (ConvStage& stage : arguments.stages) {
        if (!keeps_raw) stage.raw = {};
        stage.raw.data = nullptr;
      }
      std::vector<Output> outputs;
      const auto all = [](const Channels& like, double value) {
        Vector values(static_cast<std::size_t>(like.tensor().sizes()[1]));
        for (Bounded& each : values) each = {value, std::abs(value) * 1e-6};
        return values;
      };
      for (ConvStageTensors& own : forward.stages) {
        outputs.emplace_back("mean", own.mean, all(own.mean, 0));
        outputs.emplace_back("invstd", own.invstd, all(own.invstd, 1 / std::sqrt(BatchNormParameters().eps)));
        outputs.emplace_back("variance", own.variance, all(own.variance, 0));
      }
      verify(kConvChain, arguments, outputs);

      ConvChainBackward backward(chain);
      for (ConvStageTensors& own : backward.forward.stages) {
        own.mean.fill(all(own.mean, 0));
        own.invstd.fill(all(own.invstd, 1));
      }
      ConvChainBackwardArguments gradients = backward.arguments(chain);
      for (ConvStage& stage : gradients.forward.stages) stage.raw.data = nullptr;
      outputs.clear();
      for (ConvChainBackward::Stage& own : backward.stages) {
        outputs.emplace_back("grad_weight", own.weight, Array(own.weight.sizes()));
        outputs.emplace_back("grad_bias", own.bias, all(own.bias, 0));
        outputs.emplace_back("grad_bn.weight", own.bn_weight, all(own.bn_weight, 0));
        outputs.emplace_back("grad_bn.bias", own.bn_bias, all(own.bn_bias, 0));
      }
      verify(kConvChainBackward, gradients, outputs);
    }
  }
}

}  // namespace fusedsc::reference
