/// What BatchNorm's backward makes of the sums of a gradient: its tensors, and what is expected of them.
#pragma once

#include <vector>

#include "ops/verify.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

/// In training with all vectors; else in eval mode, and without those that may be empty.
struct GradientNormaliserTensors {
  bool training;
  Channels weight, invstd, grad_scale, output_scale, offset, grad_weight, grad_bias;

  GradientNormaliserTensors(DataType dtype, std::int64_t channels, bool training_)
      : training(training_),
        invstd(dtype, channels),
        grad_scale(dtype, channels),
        output_scale(grad_scale),
        offset(grad_scale) {
    Random random(11);
    invstd.fill(random, 0.5, 2);
    if (!training) return;
    weight = Channels(dtype, channels).fill(random, -1, 2);
    grad_weight = grad_bias = Channels(dtype, channels);
  }

  GradientNormaliser arguments() {
    return {weight, invstd, training, grad_scale, output_scale, offset, grad_weight, grad_bias};
  }

  void expect(const Precision& precision, const Vector& mean, const Sums& sums, std::int64_t count,
              std::vector<Output>& outputs) {
    const BatchNormGradients expected =
        batch_norm_backward(precision, weight.values(), {mean, invstd.values()}, sums, count, training);
    const bool is_halved = !training;  // each applied to the gradient
    Vector half;
    for (const Bounded& scale : expected.input.scale) half.push_back({scale.value / 2, scale.error / 2});
    outputs.emplace_back("grad_scale", grad_scale, is_halved ? half : expected.input.scale);
    outputs.emplace_back("output_scale", output_scale, is_halved ? half : expected.input.output_scale);
    outputs.emplace_back("offset", offset, expected.input.offset);
    if (!training) return;
    outputs.emplace_back("grad_weight of BatchNorm", grad_weight, expected.weight);
    outputs.emplace_back("grad_bias of BatchNorm", grad_bias, expected.bias);
  }
};

}  // namespace fusedsc::reference
