/// A backward pass of a convolution, depthwise or pointwise, with any fusion and layouts.
#pragma once

#include <ostream>
#include <vector>

#include "ops/cases.h"
#include "ops/gradient_normaliser.h"
#include "ops/tf32_factors.h"
#include "ops/verify.h"
#include "reference/fusion.h"

namespace fusedsc::reference {

template <class Geometry>
struct BackwardCase {
  DataType dtype;
  Geometry geometry;
  BackwardFusion fusion;
  Memories memories;  ///< y: of grad_x; other: of grad_y; x: of everything else
};

template <class Geometry>
std::ostream& operator<<(std::ostream& out, const BackwardCase<Geometry>& problem) {
  return out << name_of(problem.dtype) << ", " << problem.geometry << "\n  " << problem.fusion << "\n  "
             << problem.memories;
}

/// A case's tensors; what it does not use stays empty.
template <class Geometry>
struct BackwardTensors {
  Tensor x, weight, grad_y, output, grad_add, grad_x, grad_weight;
  Channels scale, shift, grad_scale, output_scale, offset, mean, grad_bias, sum_grad, sum_grad_times_centered;

  explicit BackwardTensors(const BackwardCase<Geometry>& problem)
      : x(problem.dtype, problem.geometry.x, problem.memories.x),
        weight(problem.dtype, problem.geometry.weight_sizes(), problem.memories.weight),
        grad_y(problem.dtype, problem.geometry.y_sizes(), problem.memories.other),
        output(problem.dtype, problem.geometry.y_sizes(), problem.memories.x),
        grad_add(problem.dtype, problem.geometry.x, problem.memories.x),
        grad_x(problem.dtype, problem.geometry.x, problem.memories.y),
        grad_weight(problem.dtype, problem.geometry.weight_sizes(), problem.memories.weight) {
    Random random(7);
    const DataType sum_type = accumulation_type(problem.dtype);
    const std::int64_t channels = x.sizes()[1], outputs = grad_y.sizes()[1];
    for (Tensor* tensor : {&x, &weight, &grad_y, &output, &grad_add}) tensor->fill(random, -1.5, 2);
    if (problem.fusion.prologue) {
      scale = Channels(sum_type, channels).fill(random, -2, 2);
      shift = Channels(sum_type, channels).fill(random, -1, 4);
    }
    if (problem.fusion.gradient_prologue) {
      for (Channels* vector : {&grad_scale, &output_scale, &offset}) {
        *vector = Channels(sum_type, outputs).fill(random, -1, 1);
      }
    }
    if (problem.fusion.cancels) {
      for (Tensor* tensor : {&x, &output}) tensor->fill(random, 99, 101);
      for (Channels* vector : {&scale, &output_scale}) vector->fill(random, 1, 1.01);
      for (Channels* vector : {&shift, &offset}) vector->fill(random, -100.5, -100);
    }
    if (problem.fusion.nearly_tf32) {
      for (Tensor* factor : {&x, &weight, &grad_y}) factor->fill(nearly_tf32(random, factor->sizes()));
      for (Channels* vector : {&scale, &grad_scale}) vector->fill(random, 1, 1);
      for (Channels* vector : {&shift, &output_scale, &offset}) vector->fill(random, 0, 0);
    }
    if (problem.fusion.output_is_of_x) output.fill(output_of_x(problem));
    if (problem.fusion.grad_bias) grad_bias = Channels(problem.dtype, outputs);
    if (problem.fusion.sums) {
      mean = Channels(sum_type, channels).fill(random, -1, 1);
      sum_grad = sum_grad_times_centered = Channels(sum_type, channels);
    }
  }

  Array output_of_x(const BackwardCase<Geometry>& problem) const {
    return problem.geometry.forward(Precision(problem.dtype), x.values(), weight.values(), {});
  }

  auto arguments(const BackwardCase<Geometry>& problem) {
    auto arguments = arguments_of(Geometry::kBackward);
    problem.geometry.set(arguments);
    arguments.x = x;
    arguments.weight = weight;
    arguments.prologue.scale = scale;
    arguments.prologue.shift = shift;
    arguments.prologue.activation = problem.fusion.activation;
    arguments.grad_y = grad_y;
    if (problem.fusion.gradient_prologue) arguments.gradient_prologue = {grad_scale, output_scale, offset, output};
    arguments.gradient_prologue.output_is_of_x = problem.fusion.output_is_of_x;
    if (problem.fusion.sums) arguments.sums = {mean, sum_grad, sum_grad_times_centered};
    if (problem.fusion.grad_add) arguments.grad_add = grad_add;
    if (problem.fusion.grad_x) arguments.grad_x = grad_x;
    if (problem.fusion.grad_weight) arguments.grad_weight = grad_weight;
    arguments.grad_bias = grad_bias;
    return arguments;
  }
};

template <class Geometry>
void verify_backward(const BackwardCase<Geometry>& problem) {
  BackwardTensors<Geometry> tensors(problem);
  const BackwardFusion& fusion = problem.fusion;
  const Precision precision(problem.dtype);
  const Affine prologue{tensors.scale.values(), tensors.shift.values(), fusion.activation};
  const Array x = tensors.x.values();
  Array grad_y = tensors.grad_y.values();
  if (fusion.gradient_prologue) {
    const GradientAffine map{tensors.grad_scale.values(), tensors.output_scale.values(), tensors.offset.values()};
    // Rounded or not: it may have been computed again.
    const Array output =
        fusion.output_is_of_x ? stored(precision, tensors.output_of_x(problem)) : tensors.output.values();
    grad_y = apply(precision, grad_y, output, map);
  }

  auto arguments = tensors.arguments(problem);
  GradientNormaliserTensors normaliser(accumulation_type(problem.dtype), tensors.x.sizes()[1],
                                       fusion.gradient_prologue);
  std::vector<Output> outputs;
  if (fusion.grad_x) {
    Array grad_x = problem.geometry.input_gradient(precision, grad_y, tensors.weight.values());
    grad_x = apply_backward(precision, grad_x, x, prologue);
    if (fusion.grad_add) grad_x = add(precision, grad_x, tensors.grad_add.values());
    outputs.emplace_back("grad_x", tensors.grad_x, grad_x);
    if (fusion.sums) {
      const Sums sums = gradient_sums(precision, grad_x, x, tensors.mean.values());
      outputs.emplace_back("sums.grad", tensors.sum_grad, sums.grad);
      outputs.emplace_back("sums.grad_times_centered", tensors.sum_grad_times_centered, sums.grad_times_centered);
      const Sizes& sizes = tensors.x.sizes();
      arguments.sums.normaliser = normaliser.arguments();
      normaliser.expect(precision, tensors.mean.values(), sums, sizes[0] * sizes[2] * sizes[3], outputs);
    }
  }
  if (fusion.grad_weight) {
    const Array grad_weight = problem.geometry.weight_gradient(precision, grad_y, apply(precision, x, prologue));
    outputs.emplace_back("grad_weight", tensors.grad_weight, grad_weight, Output::Kind::partial_sums);
  }
  if (fusion.grad_bias) {
    // The prologue may have been a pass of its own, whose result was stored.
    const Array summed = fusion.gradient_prologue ? stored(precision, grad_y) : grad_y;
    outputs.emplace_back("grad_bias", tensors.grad_bias, channel_sums(precision, summed));
  }
  verify(Geometry::kBackward, arguments, outputs);
}

/// Every activation with and without what else can be fused, both ways of reading memory.
template <class Geometry>
std::vector<BackwardCase<Geometry>> backward_fusion_cases(DataType dtype, const Geometry& first,
                                                          const Geometry& second) {
  std::vector<BackwardCase<Geometry>> cases;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    for (const Activation activation : kActivations) {
      for (const bool on : {false, true}) {
        const Geometry& geometry = on ? second : first;
        const BackwardFusion to_batch_norm{
            .prologue = true, .activation = activation, .gradient_prologue = on, .sums = true, .grad_bias = on};
        const BackwardFusion to_residual{
            .prologue = on, .activation = activation, .gradient_prologue = true, .grad_add = true};
        cases.push_back({dtype, geometry, to_batch_norm, Memories::all(memory)});
        cases.push_back({dtype, geometry, to_residual, Memories::all(memory)});
      }
    }
    for (const bool input_only : {false, true}) {
      const BackwardFusion one_output{.grad_x = input_only, .grad_weight = !input_only, .grad_bias = false};
      cases.push_back({dtype, first, one_output, Memories::all(memory)});
      cases.push_back({dtype, second, one_output, Memories::all(memory)});
    }
  }
  return cases;
}

/// Each geometry plain and with fusion picked at random.
template <class Geometry>
std::vector<BackwardCase<Geometry>> backward_edge_cases(DataType dtype, const std::vector<Geometry>& edges) {
  Random random(3);
  std::vector<BackwardCase<Geometry>> cases;
  for (const Geometry& geometry : edges) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      cases.push_back({dtype, geometry, {}, Memories::all(memory)});
      cases.push_back({dtype, geometry, BackwardFusion::random(random), Memories::all(memory)});
    }
  }
  return cases;
}

template <class Geometry>
std::vector<BackwardCase<Geometry>> backward_random_cases(DataType dtype, Geometry (*geometry)(Random&)) {
  Random random(4);
  std::vector<BackwardCase<Geometry>> cases;
  for (int i = 0; i < 150; ++i) {
    cases.push_back({dtype, geometry(random), BackwardFusion::random(random), Memories::random(random)});
  }
  return cases;
}

}  // namespace fusedsc::reference
