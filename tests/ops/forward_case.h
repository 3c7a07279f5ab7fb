/// A forward pass of a convolution, depthwise or pointwise, with any fusion and layouts.
#pragma once

#include <ostream>
#include <vector>

#include "ops/cases.h"
#include "ops/tf32_factors.h"
#include "ops/verify.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

template <class Geometry>
struct ForwardCase {
  DataType dtype;
  Geometry geometry;
  ForwardFusion fusion;
  Memories memories;

  bool has_epilogue() const { return fusion.output == ForwardFusion::Output::epilogue; }
  bool has_statistics() const { return fusion.output == ForwardFusion::Output::statistics; }
  bool has_normaliser() const { return has_statistics() && !fusion.bias; }
};

template <class Geometry>
std::ostream& operator<<(std::ostream& out, const ForwardCase<Geometry>& problem) {
  return out << name_of(problem.dtype) << ", " << problem.geometry << "\n  " << problem.fusion << "\n  "
             << problem.memories;
}

/// A case's tensors; what it does not use stays empty.
template <class Geometry>
struct ForwardTensors {
  static constexpr double kEps = 1e-3;

  Tensor x, weight, residual, y;
  Channels bias, scale, shift, epilogue_scale, epilogue_shift, mean, m2;
  Channels bn_weight, bn_bias, invstd, variance, bn_scale, bn_shift;

  explicit ForwardTensors(const ForwardCase<Geometry>& problem)
      : x(problem.dtype, problem.geometry.x, problem.memories.x),
        weight(problem.dtype, problem.geometry.weight_sizes(), problem.memories.weight),
        residual(problem.dtype, problem.geometry.y_sizes(), problem.memories.other),
        y(problem.dtype, problem.geometry.y_sizes(), problem.memories.y) {
    Random random(7);
    const DataType sum_type = accumulation_type(problem.dtype);
    const std::int64_t channels = x.sizes()[1], outputs = y.sizes()[1];
    x.fill(random, -1.5, 2);
    weight.fill(random, -1, 1);
    if (problem.fusion.bias) bias = Channels(problem.dtype, outputs).fill(random, -1, 1);
    if (problem.fusion.prologue) {
      scale = Channels(sum_type, channels).fill(random, -2, 2);
      shift = Channels(sum_type, channels).fill(random, -1, 4);
    }
    if (problem.fusion.cancels) {
      x.fill(random, 99, 101);
      scale.fill(random, 1, 1.01);
      shift.fill(random, -100.5, -100);
    }
    if (problem.fusion.nearly_tf32) {
      for (Tensor* factor : {&x, &weight}) factor->fill(nearly_tf32(random, factor->sizes()));
      scale.fill(random, 1, 1);
      shift.fill(random, 0, 0);
    }
    if (problem.has_epilogue()) {
      epilogue_scale = Channels(sum_type, outputs).fill(random, -2, 2);
      epilogue_shift = Channels(sum_type, outputs).fill(random, -1, 4);
      residual.fill(random, -1, 1);
    }
    if (problem.has_statistics()) mean = m2 = Channels(sum_type, outputs);
    if (!problem.has_normaliser()) return;
    invstd = variance = bn_scale = bn_shift = mean;
    bn_weight = Channels(sum_type, outputs).fill(random, -1, 2);
    bn_bias = Channels(sum_type, outputs).fill(random, -1, 2);
  }

  auto arguments(const ForwardCase<Geometry>& problem) {
    auto arguments = arguments_of(Geometry::kForward);
    problem.geometry.set(arguments);
    arguments.x = x;
    arguments.weight = weight;
    arguments.bias = bias;
    arguments.prologue.scale = scale;
    arguments.prologue.shift = shift;
    arguments.prologue.activation = problem.fusion.activation;
    if (problem.has_epilogue()) {
      arguments.epilogue.scale = epilogue_scale;
      arguments.epilogue.shift = epilogue_shift;
      arguments.epilogue.activation = problem.fusion.epilogue_activation;
      if (problem.fusion.residual) arguments.epilogue.residual = residual;
    }
    arguments.statistics.mean = mean;
    arguments.statistics.m2 = m2;
    arguments.statistics.normaliser = {bn_weight, bn_bias, kEps, invstd, variance, bn_scale, bn_shift};
    arguments.y = y;
    return arguments;
  }

  Array raw_output(const ForwardCase<Geometry>& problem) const {
    const Precision precision(problem.dtype);
    const Affine prologue{scale.values(), shift.values(), problem.fusion.activation};
    const Array input = apply(precision, x.values(), prologue);
    return problem.geometry.forward(precision, input, weight.values(), bias.values());
  }

  Array output(const ForwardCase<Geometry>& problem, const Array& raw) const {
    if (!problem.has_epilogue()) return raw;
    const Precision precision(problem.dtype);
    const Affine epilogue{epilogue_scale.values(), epilogue_shift.values(), problem.fusion.epilogue_activation};
    const Array result = apply(precision, raw, epilogue);
    return problem.fusion.residual ? add(precision, result, residual.values()) : result;
  }
};

template <class Geometry>
void verify_forward(const ForwardCase<Geometry>& problem) {
  ForwardTensors<Geometry> tensors(problem);
  auto arguments = tensors.arguments(problem);
  const Array raw = tensors.raw_output(problem);
  const Output y("y", tensors.y, tensors.output(problem, raw));
  if (!problem.has_statistics()) return verify(Geometry::kForward, arguments, {y});

  const Moments statistics = moments(Precision(problem.dtype), raw);
  const Output mean("statistics.mean", tensors.mean, statistics.mean);
  const Output m2("statistics.m2", tensors.m2, statistics.m2);
  std::vector<Output> sums = {mean, m2};
  if (problem.has_normaliser()) {
    const Precision precision(problem.dtype);
    const std::int64_t count = raw.elements_per_channel();
    const Vector own = invstd(precision, statistics.m2, count, tensors.kEps);
    const Affine map = batch_norm(precision, tensors.bn_weight.values(), tensors.bn_bias.values(),
                                  {statistics.mean, own}, Activation::identity);
    sums.emplace_back("invstd", tensors.invstd, own);
    sums.emplace_back("variance", tensors.variance, variance(precision, statistics.m2, count));
    sums.emplace_back("scale", tensors.bn_scale, map.scale);
    sums.emplace_back("shift", tensors.bn_shift, map.shift);
  }
  std::vector<Output> all = sums;
  all.insert(all.begin(), y);
  verify(Geometry::kForward, arguments, all);
  if (!Geometry::kYMayBeNull) return;
  arguments.y.data = nullptr;
  verify(Geometry::kForward, arguments, sums);
}

/// Every output with every activation, both ways of reading memory.
template <class Geometry>
std::vector<ForwardCase<Geometry>> forward_fusion_cases(DataType dtype, const Geometry& first, const Geometry& second) {
  using enum ForwardFusion::Output;
  std::vector<ForwardCase<Geometry>> cases;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const Memories memories = Memories::all(memory);
    for (const Activation activation : kActivations) {
      for (const bool on : {false, true}) {
        const Geometry& geometry = on ? second : first;
        const ForwardFusion epilogue_only{
            .bias = on, .output = epilogue, .epilogue_activation = activation, .residual = on};
        cases.push_back({dtype, geometry, {.bias = on, .prologue = true, .activation = activation}, memories});
        cases.push_back({dtype, geometry, {.bias = on, .activation = activation, .output = statistics}, memories});
        cases.push_back({dtype, geometry, epilogue_only, memories});
      }
    }
  }
  return cases;
}

/// Each geometry plain and with fusion picked at random.
template <class Geometry>
std::vector<ForwardCase<Geometry>> forward_edge_cases(DataType dtype, const std::vector<Geometry>& edges) {
  Random random(1);
  std::vector<ForwardCase<Geometry>> cases;
  for (const Geometry& geometry : edges) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      cases.push_back({dtype, geometry, {}, Memories::all(memory)});
      cases.push_back({dtype, geometry, ForwardFusion::random(random), Memories::all(memory)});
    }
  }
  return cases;
}

template <class Geometry>
std::vector<ForwardCase<Geometry>> forward_random_cases(DataType dtype, Geometry (*geometry)(Random&)) {
  Random random(2);
  std::vector<ForwardCase<Geometry>> cases;
  for (int i = 0; i < 150; ++i) {
    cases.push_back({dtype, geometry(random), ForwardFusion::random(random), Memories::random(random)});
  }
  return cases;
}

}  // namespace fusedsc::reference
