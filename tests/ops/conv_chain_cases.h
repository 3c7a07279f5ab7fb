/// Chains of convolutions.
#pragma once

#include <ostream>
#include <vector>

#include "ops/inverted_residual_cases.h"

namespace fusedsc::reference {

struct ConvChainCase {
  struct Stage {
    bool is_depthwise = false;
    std::int64_t outputs = 1;  ///< channels; of a depthwise one a multiple of those before
    Window window{};
    bool has_batch_norm = true;
    Activation activation = Activation::identity;
    bool bias = false;
  };

  DataType dtype = DataType::float32;
  Sizes x{};
  std::vector<Stage> stages;
  Activation input_activation = Activation::identity;
  bool residual = false, branch_scale = false;
  bool training = true;
  bool affine = true;      ///< the BatchNorms have weight and bias
  bool keeps_raw = true;   ///< forward
  Memories memories = {};  ///< y: of all that is written but x and grad_y (other)

  std::vector<Sizes> raw_sizes() const {
    std::vector<Sizes> sizes;
    Sizes from = x;
    for (const Stage& stage : stages) {
      if (stage.is_depthwise) {
        from = {from[0], stage.outputs, stage.window.output_height(from[2]), stage.window.output_width(from[3])};
      } else {
        from[1] = stage.outputs;
      }
      sizes.push_back(from);
    }
    return sizes;
  }
};

inline std::ostream& operator<<(std::ostream& out, const ConvChainCase& chain) {
  out << name_of(chain.dtype) << ", x " << printed(chain.x) << " " << name_of(chain.input_activation);
  for (const ConvChainCase::Stage& stage : chain.stages) {
    out << "\n  " << (stage.is_depthwise ? "depthwise" : "pointwise") << " to " << stage.outputs;
    if (stage.is_depthwise) out << ", " << stage.window;
    out << (stage.bias ? ", bias" : "") << (stage.has_batch_norm ? ", BatchNorm" : "") << ", "
        << name_of(stage.activation);
  }
  return out << "\n  " << (chain.residual ? "residual, " : "") << (chain.branch_scale ? "branch_scale, " : "")
             << (chain.training ? "training" : "eval") << (chain.affine ? "" : ", not affine")
             << (chain.keeps_raw ? "" : ", nothing kept") << "\n  " << chain.memories;
}

inline ConvChainCase::Stage depthwise_stage(std::int64_t channels, Window window, Activation activation) {
  return {.is_depthwise = true, .outputs = channels, .window = window, .activation = activation};
}
inline ConvChainCase::Stage pointwise_stage(std::int64_t outputs, Activation activation) {
  return {.outputs = outputs, .activation = activation};
}

/// Those that networks are made of, in training.
inline std::vector<ConvChainCase> usual_chains() {
  using enum Activation;
  const auto without_norm = [](ConvChainCase::Stage stage, bool bias) {
    stage.has_batch_norm = false;
    stage.bias = bias;
    return stage;
  };
  std::vector<ConvChainCase> chains;
  const auto add = [&](const Sizes& x, std::vector<ConvChainCase::Stage> stages) -> ConvChainCase& {
    ConvChainCase chain;
    chain.x = x;
    chain.stages = std::move(stages);
    chains.push_back(chain);
    return chains.back();
  };
  // Inverted residuals, with and without what makes them residual.
  add({2, 16, 9, 9},
      {pointwise_stage(48, relu6), depthwise_stage(48, centered(3), relu6), pointwise_stage(16, identity)})
      .residual = true;
  add({2, 8, 7, 9},
      {pointwise_stage(17, relu6), depthwise_stage(17, centered(3, 2), relu6), pointwise_stage(10, identity)});
  // The same with stochastic depth.
  ConvChainCase& dropped = add(
      {3, 8, 6, 6}, {pointwise_stage(24, silu), depthwise_stage(24, centered(5), silu), pointwise_stage(8, identity)});
  dropped.residual = dropped.branch_scale = true;
  // MobileNetV4's universal inverted bottleneck.
  add({2, 8, 8, 8}, {depthwise_stage(8, centered(3), identity), pointwise_stage(24, relu),
                     depthwise_stage(24, centered(5, 2), relu), pointwise_stage(16, identity)});
  // ShuffleNetV2's branch, the head of a detector, and MobileNetV1's block.
  add({2, 12, 7, 7},
      {pointwise_stage(12, relu), depthwise_stage(12, centered(3), identity), pointwise_stage(12, relu)});
  add({2, 16, 6, 7}, {depthwise_stage(16, centered(3), silu), pointwise_stage(24, silu)});
  add({2, 16, 6, 7}, {depthwise_stage(16, centered(3, 2), relu), pointwise_stage(24, relu)}).branch_scale = true;
  // Xception's.
  add({2, 8, 7, 7}, {without_norm(depthwise_stage(8, centered(3), identity), false), pointwise_stage(16, identity)})
      .input_activation = relu;
  // One convolution, with everything and with nothing.
  add({2, 16, 5, 6}, {pointwise_stage(24, hardswish)});
  add({2, 16, 5, 6}, {depthwise_stage(16, centered(3), identity)}).residual = true;
  add({2, 16, 5, 6}, {depthwise_stage(32, centered(3), relu6)});
  add({2, 8, 5, 6}, {without_norm(pointwise_stage(8, identity), true)}).residual = true;
  add({3, 8, 5, 6}, {without_norm(pointwise_stage(8, silu), true)}).residual = true;
  add({3, 8, 5, 6}, {without_norm(depthwise_stage(8, centered(3), identity), true)}).branch_scale = true;
  // Without BatchNorm in the middle, and with a multiplier.
  add({2, 8, 6, 6}, {without_norm(depthwise_stage(16, centered(3), hardswish), true), pointwise_stage(12, identity),
                     without_norm(pointwise_stage(8, relu), true)});
  return chains;
}

/// In both memory formats, training and eval, with raw results kept.
inline std::vector<ConvChainCase> conv_chain_edges(DataType dtype) {
  std::vector<ConvChainCase> cases;
  for (ConvChainCase chain : usual_chains()) {
    chain.dtype = dtype;
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const bool training : {true, false}) {
        chain.training = training;
        chain.memories = Memories::all(memory);
        cases.push_back(chain);
      }
    }
  }
  return cases;
}

inline std::vector<ConvChainCase> random_conv_chains(DataType dtype) {
  Random random(16);
  std::vector<ConvChainCase> cases;
  for (int i = 0; i < 40; ++i) {
    ConvChainCase chain;
    chain.dtype = dtype;
    chain.x = {between(random, 1, 3), between(random, 1, 24), between(random, 3, 10), between(random, 3, 12)};
    Sizes from = chain.x;
    const std::int64_t count = between(random, 1, 4);
    for (std::int64_t stage = 0; stage < count; ++stage) {
      ConvChainCase::Stage own;
      own.is_depthwise = coin(random);
      own.outputs = own.is_depthwise ? from[1] * (random() % 4 == 0 ? 2 : 1) : between(random, 1, 40);
      if (own.is_depthwise) own.window = centered(coin(random) ? 3 : 5, random() % 4 == 0 ? 2 : 1);
      own.has_batch_norm = random() % 3 != 0;
      own.activation = one_of(random, kActivations);
      own.bias = coin(random);
      chain.stages.push_back(own);
      from[1] = own.outputs;
    }
    chain.input_activation = coin(random) ? one_of(random, kActivations) : Activation::identity;
    chain.branch_scale = random() % 3 == 0;
    chain.training = coin(random);
    chain.affine = coin(random);
    chain.keeps_raw = coin(random);
    chain.residual = chain.raw_sizes().back() == chain.x;
    chain.memories = Memories::random(random);
    // Of an x that hardly varies invstd is large, again at every BatchNorm: 16 bits do not hold such gradients.
    while (chain.memories.x == Memory::expanded || chain.memories.x == Memory::expanded_positions) {
      chain.memories.x = one_of(random, kInputMemories);
    }
    cases.push_back(chain);
  }
  return cases;
}

/// An inverted residual as a chain.
inline ConvChainCase chain_of(const InvertedResidualCase& block) {
  ConvChainCase chain;
  chain.dtype = block.dtype;
  chain.x = block.x;
  if (block.expands()) chain.stages.push_back(pointwise_stage(block.middle(), block.activation));
  chain.stages.push_back(depthwise_stage(block.middle(), block.window, block.activation));
  chain.stages.push_back(pointwise_stage(block.outputs, Activation::identity));
  chain.residual = block.residual();
  chain.training = block.training;
  chain.affine = block.affine;
  chain.memories = block.memories;
  return chain;
}

/// With all kinds of windows.
inline std::vector<ConvChainCase> inverted_residual_chains(DataType dtype) {
  std::vector<ConvChainCase> chains;
  for (const InvertedResidualCase& block : inverted_residual_edges(dtype)) chains.push_back(chain_of(block));
  for (const InvertedResidualCase& block : random_inverted_residuals(dtype)) chains.push_back(chain_of(block));
  return chains;
}

}  // namespace fusedsc::reference
