/// The fused block's cases.
#pragma once

#include <optional>
#include <ostream>
#include <string>
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
  std::int64_t groups = 1;
  std::optional<double> overlap = std::nullopt;  ///< given: sliding channels
  Memories memories{};                           ///< y: of d and of what backward writes; other: of grad_y

  Sizes y_sizes() const {
    Sizes sizes = depthwise.y_sizes();
    sizes[1] = outputs;
    return sizes;
  }

  Sizes pw_weight_sizes() const { return {outputs, depthwise.y_sizes()[1] / groups, 1, 1}; }

  /// Whether d, and the gradient at BatchNorm's output, pass through memory: stored, or always, on a GPU and
  /// in front of anything but a dense pointwise convolution.
  bool is_composed() const { return memory().device == Device::gpu || groups > 1 || overlap; }
  bool rounds_d() const { return stores_d || is_composed(); }
  bool rounds_grad_bn() const { return stores_grad_bn || is_composed(); }
};

inline std::ostream& operator<<(std::ostream& out, const DscBlockCase& block) {
  return out << name_of(block.dtype) << ", " << block.depthwise << ", M " << block.outputs << ", "
             << name_of(block.activation) << (block.training ? ", training" : ", eval")
             << (block.biases ? ", biases" : "") << (block.affine ? "" : ", not affine")
             << (block.stores_d ? ", stores d" : "") << (block.stores_grad_bn ? ", stores grad_bn" : "")
             << (block.groups > 1 ? ", groups " + std::to_string(block.groups) : "")
             << (block.overlap ? ", overlap " + std::to_string(*block.overlap) : "")
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

/// Grouped and sliding-channel convolutions in the pointwise one's place.
inline std::vector<DscBlockCase> dsc_block_windows(DataType dtype) {
  struct Second {
    std::int64_t channels, outputs, groups;
    std::optional<double> overlap;
  };
  constexpr Second kSeconds[] = {{24, 36, 3, std::nullopt}, {24, 48, 2, 0.5},  {24, 36, 3, 0.25},
                                 {19, 24, 2, 0.33},         {17, 40, 1, 0.75}, {32, 64, 8, 0.5}};
  std::vector<DscBlockCase> cases;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    for (const Second& second : kSeconds) {
      DscBlockCase block{.dtype = dtype,
                         .depthwise = {{2, second.channels, 8, 9}, centered(3, memory == Memory::contiguous ? 1 : 2)},
                         .outputs = second.outputs,
                         .biases = second.groups == 2,
                         .groups = second.groups,
                         .overlap = second.overlap,
                         .memories = Memories::all(memory)};
      add_modes(block, true, cases);
      add_modes(block, false, cases);
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
