/// Cases of convolution -> BatchNorm -> activation, and how they are verified, on the CPU or on a GPU.
#pragma once

#include <cmath>
#include <ostream>
#include <vector>

#include "fusedsc/fused/conv_bn_act.h"
#include "ops/depthwise_cases.h"
#include "ops/tf32_factors.h"
#include "reference/conv_bn_act.h"

namespace fusedsc::reference {

constexpr Operator<ConvBnActArguments> kConvBnAct{conv_bn_act, conv_bn_act_workspace_bytes};
constexpr Operator<ConvBnActBackwardArguments> kConvBnActBackward{conv_bn_act_backward,
                                                                  conv_bn_act_backward_workspace_bytes};

struct ConvBnActCase {
  DataType dtype = DataType::float32;
  Sizes x{};
  std::int64_t outputs = 1;
  Window window{};
  Activation activation = Activation::relu6;
  bool training = true;
  bool affine = true;  ///< BatchNorm has weight and bias
  bool wants_grad_x = false;
  bool tf32 = false;
  bool nearly_tf32 = false;  ///< x and weight are (tf32_factors.h), and not what TensorFloat-32 has
  Memories memories{};       ///< y: of what backward writes, too; other: of grad_y

  Sizes weight_sizes() const { return {outputs, x[1], window.kernel[0], window.kernel[1]}; }
  Sizes y_sizes() const { return {x[0], outputs, window.output_height(x[2]), window.output_width(x[3])}; }
  Output::Kind after_statistics() const { return training ? Output::Kind::partial_sums : Output::Kind::same_bits; }
};

inline std::ostream& operator<<(std::ostream& out, const ConvBnActCase& block) {
  return out << name_of(block.dtype) << ", x " << printed(block.x) << ", M " << block.outputs << ", " << block.window
             << ", " << name_of(block.activation) << (block.training ? ", training" : ", eval")
             << (block.affine ? "" : ", not affine") << (block.wants_grad_x ? ", grad_x" : "")
             << (block.tf32 ? ", TF32" : "") << (block.nearly_tf32 ? ", nearly TF32" : "") << "\n  " << block.memories;
}

/// Images of three channels and others, windows that begin at even and at odd elements, rows of one product and of
/// several, tiles that reach beyond the image.
inline std::vector<ConvBnActCase> conv_bn_act_edges(DataType dtype) {
  struct Geometry {
    Sizes x;
    std::int64_t outputs;
    Window window;
  };
  const Geometry kGeometries[] = {
      {{2, 3, 16, 32}, 32, centered(3, 2)},
      {{1, 3, 24, 72}, 16, centered(3, 2)},                          // rows of three products, the last of 4 positions
      {{3, 3, 21, 40}, 24, {{3, 3}, {2, 2}, {1, 1}, {0, 1, 0, 1}}},  // TensorFlow's "same"
      {{1, 3, 7, 8}, 48, centered(3, 2)},
      {{1, 3, 9, 16}, 64, {{3, 3}, {2, 2}, {1, 1}, {}}},
      {{2, 3, 5, 6}, 8, centered(3, 2)},  // rows of x that no copy of 16 bytes fits
      {{2, 3, 9, 10}, 5, centered(3)},
      {{1, 3, 6, 16}, 72, centered(3, 2)},
      {{2, 1, 11, 16}, 8, centered(3, 2)},
      {{1, 1, 8, 24}, 56, centered(5, 2)},
      {{2, 2, 8, 28}, 40, centered(3)},
      {{1, 4, 9, 12}, 16, centered(3)},
      {{2, 4, 10, 18}, 32, {{3, 3}, {3, 3}, {1, 1}, {2, 1, 1, 2}}},
      {{1, 4, 6, 6}, 8, centered(1)},
      {{1, 3, 9, 16}, 16, {{2, 4}, {1, 2}, {1, 1}, {3, 2, 0, 1}}},
      {{1, 3, 10, 16}, 16, {{3, 3}, {2, 2}, {2, 2}, {2, 2, 2, 2}}},
      {{1, 3, 15, 16}, 8, centered(7, 2)},
      {{1, 8, 6, 7}, 12, centered(3)},
  };
  std::vector<ConvBnActCase> cases;
  for (const auto& [x, outputs, window] : kGeometries) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const bool training : {true, false}) {
        Memories memories = Memories::all(memory);
        memories.weight = training ? Memory::channels_last : Memory::contiguous;
        cases.push_back({.dtype = dtype,
                         .x = x,
                         .outputs = outputs,
                         .window = window,
                         .training = training,
                         .wants_grad_x = memory == Memory::contiguous,
                         .memories = memories});
      }
    }
  }
  return cases;
}

inline std::vector<ConvBnActCase> conv_bn_act_activations(DataType dtype) {
  std::vector<ConvBnActCase> cases;
  for (const Activation activation : kActivations) {
    for (const bool plain : {false, true}) {
      for (const std::int64_t channels : {3, 4}) {
        cases.push_back({.dtype = dtype,
                         .x = {2, channels, 9, 24},
                         .outputs = 16,
                         .window = centered(3, 2),
                         .activation = activation,
                         .training = true,
                         .affine = !plain,
                         .wants_grad_x = plain,
                         .memories = Memories::all(Memory::channels_last)});
      }
    }
  }
  return cases;
}

inline std::vector<ConvBnActCase> random_conv_bn_acts(DataType dtype) {
  Random random(11);
  std::vector<ConvBnActCase> cases;
  for (int i = 0; i < 40; ++i) {
    ConvBnActCase block{.dtype = dtype};
    block.x = {between(random, 1, 3), between(random, 1, 5), between(random, 5, 12), between(random, 5, 20)};
    block.outputs = between(random, 1, 33);
    const auto side = [&](std::int64_t most) { return between(random, 1, most); };
    block.window = {{side(4), side(4)}, {side(3), side(3)}, {1, 1}, {}};
    for (std::int64_t* padding : {&block.window.padding.left, &block.window.padding.right, &block.window.padding.top,
                                  &block.window.padding.bottom}) {
      *padding = between(random, 0, 2);
    }
    block.activation = one_of(random, kActivations);
    block.memories = Memories::random(random);
    block.memories.weight = coin(random) ? Memory::contiguous : Memory::channels_last;
    for (bool* flag : {&block.training, &block.affine, &block.wants_grad_x}) *flag = coin(random);
    cases.push_back(block);
  }
  return cases;
}

/// The same with TensorFloat-32 allowed.
inline std::vector<ConvBnActCase> with_tf32(std::vector<ConvBnActCase> cases) {
  for (ConvBnActCase& block : cases) block.tf32 = true;
  return cases;
}

/// What goes in: the same values for forward, backward and the reference.
struct ConvBnActInputs {
  Tensor x, weight;
  Channels bn_weight, bn_bias, running_mean, running_invstd;

  explicit ConvBnActInputs(const ConvBnActCase& block)
      : x(block.dtype, block.x, block.memories.x), weight(block.dtype, block.weight_sizes(), block.memories.weight) {
    Random random(12);
    const DataType sum_type = accumulation_type(block.dtype);
    x.fill(random, -1, 2);
    weight.fill(random, -1, 1);
    for (Tensor* factor : {&x, &weight}) {
      factor->fill(block.nearly_tf32 ? nearly_tf32(random, factor->sizes()) : Tf32{block.tf32}.exact(factor->values()));
    }
    if (block.affine) {
      bn_weight = Channels(sum_type, block.outputs).fill(random, -1, 3);
      bn_bias = Channels(sum_type, block.outputs).fill(random, -1, 4);
    }
    running_mean = Channels(sum_type, block.outputs).fill(random, -1, 1);
    running_invstd = Channels(sum_type, block.outputs).fill(random, 0.5, 2);
  }

  ConvBnAct reference(const ConvBnActCase& block) const {
    const Tf32 tf32{block.tf32};
    return {block.dtype,
            block.window,
            block.activation,
            ConvBnActArguments().eps,
            block.training,
            tf32.factor(x.values()),
            tf32.factor(weight.values()),
            bn_weight.values(),
            bn_bias.values(),
            block.tf32};
  }
  Normalisation running() const { return {running_mean.values(), running_invstd.values()}; }

  template <class Arguments>
  void set(const ConvBnActCase& block, Arguments& arguments) {
    arguments.x = x;
    arguments.weight = weight;
    arguments.window = block.window;
    arguments.bn_weight = bn_weight;
    arguments.bn_bias = bn_bias;
    arguments.activation = block.activation;
    arguments.training = block.training;
    arguments.allow_tf32 = block.tf32;
  }
};

/// Forward's results.
struct ConvBnActForward {
  ConvBnActInputs inputs;
  Tensor y;
  Channels mean, invstd, variance, scale, shift;

  explicit ConvBnActForward(const ConvBnActCase& block)
      : inputs(block),
        y(block.dtype, block.y_sizes(), block.memories.y),
        mean(accumulation_type(block.dtype), block.outputs),
        invstd(mean),
        variance(mean),
        scale(mean),
        shift(mean) {}

  ConvBnActArguments arguments(const ConvBnActCase& block) {
    ConvBnActArguments arguments;
    inputs.set(block, arguments);
    arguments.mean = block.training ? mean : inputs.running_mean;
    arguments.invstd = block.training ? invstd : inputs.running_invstd;
    if (block.training) arguments.variance = variance;
    arguments.y = y;
    return arguments;
  }

  /// In eval mode: the affine map, and nothing that it follows from.
  ConvBnActArguments folded(const ConvBnActCase& block) {
    const Affine map = batch_norm(Precision(mean.tensor().dtype()), inputs.bn_weight.values(), inputs.bn_bias.values(),
                                  inputs.running(), Activation::identity);
    ConvBnActArguments result = arguments(block);
    result.bn_weight = result.bn_bias = {};
    result.mean = mean;
    result.invstd = invstd;
    result.scale = scale.fill(map.scale);
    result.shift = shift.fill(map.shift);
    return result;
  }
};

/// Backward's, and what it takes from forward.
struct ConvBnActBackward {
  ConvBnActInputs inputs;
  Tensor grad_y, grad_x, grad_weight;
  Channels mean, invstd, grad_bn_weight, grad_bn_bias;

  explicit ConvBnActBackward(const ConvBnActCase& block)
      : inputs(block),
        grad_y(block.dtype, block.y_sizes(), block.memories.other),
        grad_x(block.dtype, block.x, block.memories.y),
        grad_weight(block.dtype, block.weight_sizes(), block.memories.weight),
        mean(inputs.running_mean),
        invstd(inputs.running_invstd),
        grad_bn_weight(accumulation_type(block.dtype), block.outputs),
        grad_bn_bias(grad_bn_weight) {
    Random random(13);
    grad_y.fill(random, -1, 2);
  }

  ConvBnActBackwardArguments arguments(const ConvBnActCase& block) {
    ConvBnActBackwardArguments arguments;
    inputs.set(block, arguments);
    arguments.mean = mean;
    arguments.invstd = invstd;
    arguments.grad_y = grad_y;
    if (block.wants_grad_x) arguments.grad_x = grad_x;
    arguments.grad_weight = grad_weight;
    if (block.affine) {
      arguments.grad_bn_weight = grad_bn_weight;
      arguments.grad_bn_bias = grad_bn_bias;
    }
    return arguments;
  }
};

inline void verify_conv_bn_act(const ConvBnActCase& block) {
  ConvBnActForward tensors(block);
  const ConvBnActOutputs expected = forward(tensors.inputs.reference(block), tensors.inputs.running());
  std::vector<Output> outputs{{"y", tensors.y, expected.y, block.after_statistics()}};
  if (block.training) {
    outputs.emplace_back("mean", tensors.mean, expected.statistics.mean);
    outputs.emplace_back("invstd", tensors.invstd, expected.statistics.invstd);
    outputs.emplace_back("variance", tensors.variance, expected.statistics.variance);
  }
  verify(kConvBnAct, tensors.arguments(block), outputs);
  if (!block.training) verify_once(kConvBnAct, tensors.folded(block), outputs, "folded");
}

inline void verify_conv_bn_act_backward(const ConvBnActCase& block) {
  ConvBnActBackward tensors(block);
  if (block.training) {
    const ConvBnActOutputs outputs = forward(tensors.inputs.reference(block), tensors.inputs.running());
    tensors.mean.fill(outputs.statistics.mean);
    tensors.invstd.fill(outputs.statistics.invstd);
  }
  const ConvBnActGradients expected = backward(
      tensors.inputs.reference(block), {tensors.mean.values(), tensors.invstd.values()}, tensors.grad_y.values());
  std::vector<Output> outputs;
  outputs.emplace_back("grad_weight", tensors.grad_weight, expected.weight, Output::Kind::partial_sums);
  if (block.wants_grad_x) outputs.emplace_back("grad_x", tensors.grad_x, expected.x, block.after_statistics());
  if (block.affine) {
    outputs.emplace_back("grad_bn_weight", tensors.grad_bn_weight, expected.bn_weight);
    outputs.emplace_back("grad_bn_bias", tensors.grad_bn_bias, expected.bn_bias);
  }
  verify(kConvBnActBackward, tensors.arguments(block), outputs);
}

/// A batch without images.
inline void verify_empty_conv_bn_act(DataType dtype) {
  const ConvBnActCase block{.dtype = dtype,
                            .x = {0, 3, 8, 16},
                            .outputs = 16,
                            .window = centered(3, 2),
                            .memories = Memories::all(Memory::channels_last)};
  const auto constants = [](const Channels& channels, double value) {
    return Vector(static_cast<std::size_t>(channels.tensor().sizes()[1]), Bounded{value, std::abs(value) * 1e-6});
  };
  ConvBnActForward forward(block);
  ConvBnActArguments arguments = forward.arguments(block);
  arguments.y.data = nullptr;  // as memory without elements may be
  const double invstd = 1 / std::sqrt(arguments.eps);
  verify(kConvBnAct, arguments,
         {{"mean", forward.mean, constants(forward.mean, 0)},
          {"invstd", forward.invstd, constants(forward.invstd, invstd)},
          {"variance", forward.variance, constants(forward.variance, 0)}});

  ConvBnActBackward backward(block);
  backward.mean.fill(constants(backward.mean, 0));
  backward.invstd.fill(constants(backward.invstd, invstd));
  verify(kConvBnActBackward, backward.arguments(block),
         {{"grad_weight", backward.grad_weight, Array(backward.grad_weight.sizes())},
          {"grad_bn_weight", backward.grad_bn_weight, constants(backward.grad_bn_weight, 0)},
          {"grad_bn_bias", backward.grad_bn_bias, constants(backward.grad_bn_bias, 0)}});
}

}  // namespace fusedsc::reference
