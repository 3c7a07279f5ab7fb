/// The inverted residual's cases.
#pragma once

#include <ostream>
#include <vector>

#include "ops/depthwise_cases.h"

namespace fusedsc::reference {

struct InvertedResidualCase {
  DataType dtype = DataType::float32;
  Sizes x{};
  std::int64_t expansion = 0;  ///< channels of e; 0: no expansion
  std::int64_t outputs = 1;
  Window window;
  Activation activation = Activation::relu6;
  bool training = true;
  bool affine = true;   ///< the BatchNorms have weight and bias
  Memories memories{};  ///< y: of all that is written but x and grad_y (other)

  bool expands() const { return expansion > 0; }
  std::int64_t middle() const { return expands() ? expansion : x[1]; }
  bool residual() const {
    return outputs == x[1] && window.stride == std::array<std::int64_t, 2>{1, 1} && d_sizes()[2] == x[2] &&
           d_sizes()[3] == x[3];
  }
  Sizes e_sizes() const { return {x[0], middle(), x[2], x[3]}; }
  Sizes d_sizes() const { return {x[0], middle(), window.output_height(x[2]), window.output_width(x[3])}; }
  Sizes y_sizes() const { return {x[0], outputs, d_sizes()[2], d_sizes()[3]}; }
};

inline std::ostream& operator<<(std::ostream& out, const InvertedResidualCase& block) {
  return out << name_of(block.dtype) << ", x " << printed(block.x) << ", E " << block.expansion << ", M "
             << block.outputs << ", " << block.window << ", " << name_of(block.activation)
             << (block.training ? ", training" : ", eval") << (block.affine ? "" : ", not affine")
             << (block.residual() ? ", residual" : "") << "\n  " << block.memories;
}

/// Both memory formats, training and eval.
inline std::vector<InvertedResidualCase> inverted_residual_edges(DataType dtype) {
  struct Geometry {
    Sizes x;
    std::int64_t expansion, outputs;
    Window window;
  };
  const Geometry kGeometries[] = {
      {{2, 16, 14, 14}, 96, 16, centered(3)}, {{2, 16, 14, 14}, 96, 24, centered(3, 2)},
      {{2, 32, 9, 9}, 0, 16, centered(3)},    {{2, 24, 9, 9}, 0, 24, centered(3)},
      {{1, 24, 7, 7}, 144, 40, centered(3)},  {{1, 40, 7, 7}, 120, 40, centered(5)},
      {{5, 8, 4, 4}, 17, 10, centered(3, 2)}, {{1, 3, 9, 33}, 12, 8, centered(3, 2)},
      {{3, 8, 1, 1}, 24, 8, centered(3)},     {{1, 1, 5, 6}, 1, 1, centered(3)},
      {{1, 7, 6, 9}, 35, 7, centered(7)},     {{1, 10, 8, 8}, 30, 12, {{3, 3}, {2, 2}, {1, 1}, {0, 1, 0, 1}}},
  };
  std::vector<InvertedResidualCase> cases;
  for (const Geometry& geometry : kGeometries) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const bool training : {true, false}) {
        InvertedResidualCase block{dtype, geometry.x, geometry.expansion, geometry.outputs, geometry.window};
        block.training = training;
        block.memories = Memories::all(memory);
        cases.push_back(block);
      }
    }
  }
  return cases;
}

inline std::vector<InvertedResidualCase> random_inverted_residuals(DataType dtype) {
  Random random(6);
  std::vector<InvertedResidualCase> cases;
  for (int i = 0; i < 40; ++i) {
    const DepthwiseGeometry geometry = random_depthwise(random);
    InvertedResidualCase block{dtype, geometry.x, coin(random) ? between(random, 1, 60) : 0,
                               coin(random) ? geometry.x[1] : between(random, 1, 40), geometry.window};
    block.activation = one_of(random, kActivations);
    block.training = coin(random);
    block.affine = coin(random);
    block.memories = Memories::random(random);
    cases.push_back(block);
  }
  return cases;
}

}  // namespace fusedsc::reference
