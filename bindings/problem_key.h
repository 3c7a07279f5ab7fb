/// What a plan depends on, of an operator's arguments: everything but addresses, of which the alignment counts and
/// whether they are given.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/sliding_channel.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/sliding_channel.h"
#include "fusedsc/fused/conv_bn_act.h"
#include "fusedsc/fused/conv_chain.h"
#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/fused/gated_residual.h"

namespace fusedsc::aten {

/// A sequence of words. Two problems have the same one if and only if they are planned alike.
class ProblemKey {
 public:
  void begin() { words_.clear(); }

  template <class... Parts>
  void add(const Parts&... parts) {
    (add_one(parts), ...);
  }

  std::uint64_t hash() const {
    std::uint64_t hash = words_.size();
    for (const std::uint64_t word : words_) hash = std::rotl((hash ^ word) * 0x9e3779b97f4a7c15u, 29);
    return hash;
  }
  bool is(const std::vector<std::uint64_t>& words) const { return words == words_; }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  template <class Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add_one(Number number) { words_.push_back(static_cast<std::uint64_t>(number)); }
  void add_one(double number) { words_.push_back(std::bit_cast<std::uint64_t>(number)); }
  template <class T>
  void add_one(const std::optional<T>& value) {
    add(value.has_value(), value.value_or(T()));
  }
  template <class T>
  void add_one(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add_one(value);
  }
  template <class T, std::size_t kCount>
  void add_one(const std::array<T, kCount>& values) {
    for (const T& value : values) add_one(value);
  }

  /// The largest power of two that divides an address, up to a line of a CPU's cache, which is the most that anything
  /// asks for; 0: not given.
  static std::uint64_t alignment_of(const void* address) {
    constexpr std::uintptr_t kMost = 64;
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return value == 0 ? 0 : std::uint64_t{1} << std::countr_zero(value | kMost);
  }
  template <class Pointer>
  void add_one(const BasicTensorView<Pointer>& tensor) {
    const auto& [data, dtype, sizes, strides, device] = tensor;
    const auto kind = static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(device);
    words_.push_back(kind << 16 | alignment_of(data));
    add(sizes, strides);
  }
  template <class Pointer>
  void add_one(const BasicChannelVector<Pointer>& vector) {
    const auto& [data, dtype, size, device] = vector;
    const auto kind = static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(device);
    words_.push_back(kind << 16 | alignment_of(data));
    add(size);
  }
  template <class Struct>
  requires std::is_class_v<Struct>
  void add_one(const Struct& value) { add_to(*this, value); }

  std::vector<std::uint64_t> words_;
};

// Each takes its struct apart: one that gets another member does not compile here until that has its place, too.

inline void add_to(ProblemKey& key, const Padding& padding) {
  const auto& [left, right, top, bottom] = padding;
  key.add(left, right, top, bottom);
}

inline void add_to(ProblemKey& key, const Window& window) {
  const auto& [kernel, stride, dilation, padding] = window;
  key.add(kernel, stride, dilation, padding);
}

inline void add_to(ProblemKey& key, const SlidingChannels& windows) {
  const auto& [channels, width, step, cycle] = windows;
  key.add(channels, width, step, cycle);
}

inline void add_to(ProblemKey& key, const Prologue& prologue) {
  const auto& [scale, shift, activation] = prologue;
  key.add(scale, shift, activation);
}

inline void add_to(ProblemKey& key, const Epilogue& epilogue) {
  const auto& [scale, shift, activation, residual] = epilogue;
  key.add(scale, shift, activation, residual);
}

inline void add_to(ProblemKey& key, const Normaliser& normaliser) {
  const auto& [weight, bias, eps, invstd, variance, scale, shift] = normaliser;
  key.add(weight, bias, eps, invstd, variance, scale, shift);
}

inline void add_to(ProblemKey& key, const Statistics& statistics) {
  const auto& [mean, m2, normaliser, is_before_pointwise] = statistics;
  key.add(mean, m2, normaliser, is_before_pointwise);
}

inline void add_to(ProblemKey& key, const GradientPrologue& prologue) {
  const auto& [grad_scale, output_scale, offset, output, output_is_of_x] = prologue;
  key.add(grad_scale, output_scale, offset, output, output_is_of_x);
}

inline void add_to(ProblemKey& key, const GradientNormaliser& normaliser) {
  const auto& [weight, invstd, training, grad_scale, output_scale, offset, grad_weight, grad_bias] = normaliser;
  key.add(weight, invstd, training, grad_scale, output_scale, offset, grad_weight, grad_bias);
}

inline void add_to(ProblemKey& key, const GradientSums& sums) {
  const auto& [mean, grad, grad_times_centered, normaliser] = sums;
  key.add(mean, grad, grad_times_centered, normaliser);
}

inline void add_to(ProblemKey& key, const BatchNormParameters& parameters) {
  const auto& [weight, bias, eps, mean, invstd, variance, scale, shift] = parameters;
  key.add(weight, bias, eps, mean, invstd, variance, scale, shift);
}

inline void add_to(ProblemKey& key, const BatchNormGradients& gradients) {
  const auto& [weight, bias] = gradients;
  key.add(weight, bias);
}

// ---------------------------------------------------------------------------------------------------------- operators

inline void add_to(ProblemKey& key, const DepthwiseArguments& arguments) {
  const auto& [x, weight, bias, window, prologue, epilogue, statistics, y] = arguments;
  key.add(x, weight, bias, window, prologue, epilogue, statistics, y);
}

inline void add_to(ProblemKey& key, const DepthwiseBackwardArguments& arguments) {
  const auto& [x, weight, window, prologue, grad_y, gradient_prologue, sums, grad_add, grad_x, grad_weight, grad_bias] =
      arguments;
  key.add(x, weight, window, prologue, grad_y, gradient_prologue, sums, grad_add, grad_x, grad_weight, grad_bias);
}

inline void add_to(ProblemKey& key, const PointwiseArguments& arguments) {
  const auto& [x, weight, bias, groups, prologue, prologue_is_new, epilogue, statistics, y, allow_tf32, windows] =
      arguments;
  key.add(x, weight, bias, groups, prologue, prologue_is_new, epilogue, statistics, y, allow_tf32, windows);
}

inline void add_to(ProblemKey& key, const PointwiseBackwardArguments& arguments) {
  const auto& [x, weight, groups, prologue, grad_y, gradient_prologue, sums, grad_add, grad_x, grad_weight, grad_bias,
               allow_tf32, windows] = arguments;
  key.add(x, weight, groups, prologue, grad_y, gradient_prologue, sums, grad_add, grad_x, grad_weight, grad_bias,
          allow_tf32, windows);
}

inline void add_to(ProblemKey& key, const SlidingChannelArguments& arguments) {
  const auto& [x, weight, bias, groups, overlap, prologue, epilogue, statistics, y, allow_tf32] = arguments;
  key.add(x, weight, bias, groups, overlap, prologue, epilogue, statistics, y, allow_tf32);
}

inline void add_to(ProblemKey& key, const SlidingChannelBackwardArguments& arguments) {
  const auto& [x, weight, groups, overlap, allow_tf32, prologue, grad_y, gradient_prologue, sums, grad_add, grad_x,
               grad_weight, grad_bias] = arguments;
  key.add(x, weight, groups, overlap, allow_tf32, prologue, grad_y, gradient_prologue, sums, grad_add, grad_x,
          grad_weight, grad_bias);
}

inline void add_to(ProblemKey& key, const ConvBnActArguments& arguments) {
  const auto& [x, weight, window, bn_weight, bn_bias, eps, activation, training, mean, invstd, variance, scale, shift,
               y, allow_tf32] = arguments;
  key.add(x, weight, window, bn_weight, bn_bias, eps, activation, training, mean, invstd, variance, scale, shift, y,
          allow_tf32);
}

inline void add_to(ProblemKey& key, const ConvBnActBackwardArguments& arguments) {
  const auto& [x, weight, window, bn_weight, bn_bias, activation, training, mean, invstd, grad_y, grad_x, grad_weight,
               grad_bn_weight, grad_bn_bias, allow_tf32] = arguments;
  key.add(x, weight, window, bn_weight, bn_bias, activation, training, mean, invstd, grad_y, grad_x, grad_weight,
          grad_bn_weight, grad_bn_bias, allow_tf32);
}

inline void add_to(ProblemKey& key, const DscBlockArguments& arguments) {
  const auto& [x, dw_weight, dw_bias, pw_weight, pw_bias, groups, overlap, window, bn_weight, bn_bias, eps, activation,
               training, mean, invstd, variance, scale, shift, d, y, epilogue, allow_tf32] = arguments;
  key.add(x, dw_weight, dw_bias, pw_weight, pw_bias, groups, overlap, window, bn_weight, bn_bias, eps, activation,
          training, mean, invstd, variance, scale, shift, d, y, epilogue, allow_tf32);
}

inline void add_to(ProblemKey& key, const DscBlockBackwardArguments& arguments) {
  const auto& [x, dw_weight, dw_bias, pw_weight, groups, overlap, window, bn_weight, bn_bias, activation, training,
               mean, invstd, scale, shift, d, grad_y, grad_bn, grad_x, grad_dw_weight, grad_pw_weight, grad_dw_bias,
               grad_pw_bias, grad_bn_weight, grad_bn_bias, allow_tf32] = arguments;
  key.add(x, dw_weight, dw_bias, pw_weight, groups, overlap, window, bn_weight, bn_bias, activation, training, mean,
          invstd, scale, shift, d, grad_y, grad_bn, grad_x, grad_dw_weight, grad_pw_weight, grad_dw_bias, grad_pw_bias,
          grad_bn_weight, grad_bn_bias, allow_tf32);
}

inline void add_to(ProblemKey& key, const InvertedResidualArguments& arguments) {
  const auto& [x, expand_weight, dw_weight, project_weight, expand_bn, dw_bn, project_bn, window, activation, residual,
               training, e, d, p, y, allow_tf32] = arguments;
  key.add(x, expand_weight, dw_weight, project_weight, expand_bn, dw_bn, project_bn, window, activation, residual,
          training, e, d, p, y, allow_tf32);
}

inline void add_to(ProblemKey& key, const InvertedResidualBackwardArguments& arguments) {
  const auto& [forward, grad_y, grad_d, grad_e, grad_x, grad_expand_weight, grad_dw_weight, grad_project_weight,
               grad_expand_bn, grad_dw_bn, grad_project_bn] = arguments;
  key.add(forward, grad_y, grad_d, grad_e, grad_x, grad_expand_weight, grad_dw_weight, grad_project_weight,
          grad_expand_bn, grad_dw_bn, grad_project_bn);
}

inline void add_to(ProblemKey& key, const ConvStage& stage) {
  const auto& [kind, weight, bias, window, bn, activation, raw] = stage;
  key.add(kind, weight, bias, window, bn, activation, raw);
}

/// merge: what it does is asked of the arguments that a plan runs with.
inline void add_to(ProblemKey& key, const ConvChainArguments& arguments) {
  const auto& [x, stages, input_activation, residual, branch_scale, training, y, allow_tf32, merge] = arguments;
  key.add(x, stages, input_activation, residual, branch_scale, training, y, allow_tf32, merge != nullptr);
}

inline void add_to(ProblemKey& key, const ConvStageGradients& gradients) {
  const auto& [weight, bias, bn] = gradients;
  key.add(weight, bias, bn);
}

inline void add_to(ProblemKey& key, const ConvChainBackwardArguments& arguments) {
  const auto& [forward, grad_y, stages, grad_x] = arguments;
  key.add(forward, grad_y, stages, grad_x);
}

inline void add_to(ProblemKey& key, const GatedResidualArguments& arguments) {
  const auto& [block, mean, gate, z] = arguments;
  key.add(block, mean, gate, z);
}

inline void add_to(ProblemKey& key, const GatedResidualBackwardArguments& arguments) {
  const auto& [block, gate, z, grad_gate, grad_mean] = arguments;
  key.add(block, gate, z, grad_gate, grad_mean);
}

}  // namespace fusedsc::aten
