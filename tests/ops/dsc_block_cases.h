/// The fused block's cases.
#pragma once

#include <ostream>
#include <vector>

#include "ops/depthwise_cases.h"

namespace fusedsc::reference {

struct DscBlockCase {
  DataType dtype = DataType::float32;
  DepthwiseGeometry depthwise;
  std::int64_t outputs = 1;
  Activation activation = Activation::relu6;
  bool training = true;
  bool biases = false;    ///< of the convolutions
  bool affine = true;     ///< BatchNorm has weight and bias
  bool stores_d = false;  ///< else recomputed
  bool stores_grad_bn = false;
  bool leaves_out = false;  ///< some gradients are not wanted
  Memories memories{};      ///< y: of d and of what backward writes; other: of grad_y

  Sizes y_sizes() const {
    Sizes sizes = depthwise.y_sizes();
    sizes[1] = outputs;
    return sizes;
  }

  /// Whether d, and the gradient at BatchNorm's output, pass through memory: stored, or always, on a GPU.
  bool rounds_d() const { return stores_d || memory().device == Device::gpu; }
  bool rounds_grad_bn() const { return stores_grad_bn || memory().device == Device::gpu; }
};

inline std::ostream& operator<<(std::ostream& out, const DscBlockCase& block) {
  return out << name_of(block.dtype) << ", " << block.depthwise << ", M " << block.outputs << ", "
             << name_of(block.activation) << (block.training ? ", training" : ", eval")
             << (block.biases ? ", biases" : "") << (block.affine ? "" : ", not affine")
             << (block.stores_d ? ", stores d" : "") << (block.stores_grad_bn ? ", stores grad_bn" : "")
             << (block.leaves_out ? ", leaves gradients out" : "") << "\n  " << block.memories;
}

/// Training and eval; what one stores, the other recomputes.
inline void add_modes(DscBlockCase block, bool training_stores, std::vector<DscBlockCase>& cases) {
  for (const bool training : {true, false}) {
    block.training = training;
    block.stores_d = block.stores_grad_bn = training == training_stores;
    cases.push_back(block);
  }
}

inline std::vector<DscBlockCase> dsc_block_edges(DataType dtype) {
  const std::pair<DepthwiseGeometry, std::int64_t> kGeometries[] = {
      {{{2, 16, 14, 14}, centered(3)}, 24},
      {{{2, 16, 14, 14}, centered(3, 2)}, 24},
      {{{1, 32, 28, 28}, centered(3)}, 16},
      {{{1, 17, 6, 33}, centered(3, 2)}, 10},
      {{{2, 100, 7, 7}, centered(3)}, 160},
      {{{1, 160, 5, 5}, centered(3)}, 40},
      {{{5, 24, 4, 4}, centered(3, 2)}, 40},
      {{{1, 1, 9, 8}, centered(3)}, 1},
      {{{1, 3, 5, 1}, centered(3)}, 10},
      {{{3, 35, 1, 2}, centered(3)}, 24},
      {{{4, 8, 1, 1}, centered(3)}, 3},
      {{{1, 64, 3, 40}, centered(3)}, 32},
      {{{1, 20, 40, 3}, centered(3, 2)}, 24},
      {{{1, 16, 9, 12}, centered(5)}, 24},
      {{{1, 19, 9, 12}, centered(5, 2)}, 17},
      {{{1, 16, 9, 9}, centered(7)}, 8},
      {{{1, 16, 6, 9}, centered(2)}, 8},
      {{{2, 16, 6, 9}, centered(1)}, 8},
      {{{1, 8, 7, 9}, centered(3), 2}, 24},
      {{{1, 7, 7, 9}, centered(3, 2), 3}, 10},
      {{{1, 12, 9, 10}, {{3, 5}, {1, 2}, {1, 1}, {2, 2, 1, 1}}}, 16},
      {{{1, 12, 9, 10}, {{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}}, 16},
      {{{1, 12, 8, 10}, {{3, 3}, {2, 2}, {1, 1}, {0, 1, 0, 1}}}, 16},
      {{{1, 12, 7, 9}, {{3, 3}, {1, 1}, {1, 1}, {}}}, 16},
  };
  std::vector<DscBlockCase> cases;
  for (const auto& [geometry, outputs] : kGeometries) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      DscBlockCase block{.dtype = dtype, .depthwise = geometry, .outputs = outputs, .memories = Memories::all(memory)};
      add_modes(block, memory == Memory::contiguous, cases);
    }
  }
  return cases;
}

inline std::vector<DscBlockCase> dsc_block_activations(DataType dtype) {
  std::vector<DscBlockCase> cases;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    for (const Activation activation : kActivations) {
      for (const bool plain : {false, true}) {
        DscBlockCase block{.dtype = dtype,
                           .depthwise = {{2, 19, 8, 13}, centered(3, plain ? 1 : 2)},
                           .outputs = 24,
                           .activation = activation,
                           .biases = !plain,
                           .affine = !plain,
                           .memories = Memories::all(memory)};
        add_modes(block, plain, cases);
      }
    }
  }
  return cases;
}

inline std::vector<DscBlockCase> random_dsc_blocks(DataType dtype) {
  Random random(5);
  std::vector<DscBlockCase> cases;
  for (int i = 0; i < 100; ++i) {
    DscBlockCase block{.dtype = dtype, .depthwise = random_depthwise(random), .outputs = between(random, 1, 40)};
    block.activation = one_of(random, kActivations);
    block.memories = Memories::random(random);
    for (bool* flag :
         {&block.training, &block.biases, &block.affine, &block.stores_d, &block.stores_grad_bn, &block.leaves_out}) {
      *flag = coin(random);
    }
    cases.push_back(block);
  }
  return cases;
}

}  // namespace fusedsc::reference
