/// What is fused, and expected of NaNs, in the tests of "gpu_fragments": whole runs of 16 bytes and packed rows.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/backward_case.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {

/// Behind `own`, which has no activation: activations that only clamp, any others, and an epilogue alone.
inline std::vector<ForwardFusion> forward_fusions(const ForwardFusion& own) {
  using Output = ForwardFusion::Output;
  return {own,
          {.bias = true, .prologue = true, .activation = Activation::relu6, .output = Output::statistics},
          {.prologue = true,
           .activation = Activation::silu,
           .output = Output::epilogue,
           .epilogue_activation = Activation::hardswish,
           .residual = true},
          {.output = Output::epilogue, .epilogue_activation = Activation::relu, .residual = true}};
}

/// Of one gradient; identity: nothing.
inline BackwardFusion backward_fusion(Activation activation, bool is_weight) {
  const bool fused = activation != Activation::identity;
  return {.prologue = fused,
          .activation = activation,
          .gradient_prologue = fused,
          .sums = activation == Activation::relu6 && !is_weight,
          .grad_add = activation == Activation::silu && !is_weight,
          .grad_x = !is_weight,
          .grad_weight = is_weight,
          .grad_bias = is_weight};
}

/// All channels of that position are NaNs, and nothing else.
inline void expect_one_position(const Array& y, std::int64_t row, std::int64_t column) {
  for_each_index(y.sizes, [&](auto n, auto c, auto h, auto w) {
    ASSERT_EQ(std::isnan(y.at(n, c, h, w).value), h == row && w == column) << c << ' ' << h << ' ' << w;
  });
}

/// All of a weight's gradient that is of that channel.
inline void expect_one_channel(const Array& gradient, std::int64_t channel) {
  for_each_index(gradient.sizes, [&](auto m, auto c, auto h, auto w) {
    ASSERT_EQ(std::isnan(gradient.at(m, c, h, w).value), c == channel) << m << ' ' << c;
  });
}

}  // namespace fusedsc::reference
