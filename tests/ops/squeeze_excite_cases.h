/// Squeeze-and-excitation's passes: cases, and how they are verified.
#pragma once

#include "fusedsc/fused/squeeze_excite.h"
#include "ops/cases.h"
#include "ops/gradient_normaliser.h"
#include "reference/squeeze_excite.h"

namespace fusedsc::reference {

constexpr Operator<SqueezeArguments> kSqueeze{squeeze, squeeze_workspace_bytes};
constexpr Operator<ExciteArguments> kExcite{excite, excite_workspace_bytes};
constexpr Operator<ExciteBackwardArguments> kExciteBackward{excite_backward, excite_backward_workspace_bytes};
constexpr Operator<SqueezeBackwardArguments> kSqueezeBackward{squeeze_backward, squeeze_backward_workspace_bytes};

struct SqueezeExciteCase {
  DataType dtype;
  Sizes sizes;
  Activation activation;
  Memories memories;                       ///< x; y: of out, grad and what is per map; other: of grad_out
  Memory per_map = Memory::channels_last;  ///< of what is read of each map
};

inline std::ostream& operator<<(std::ostream& out, const SqueezeExciteCase& problem) {
  return out << name_of(problem.dtype) << ", " << printed(problem.sizes) << ", " << name_of(problem.activation)
             << "\n  " << problem.memories << ", per map " << name_of(problem.per_map);
}

inline std::vector<SqueezeExciteCase> squeeze_excite_cases(DataType dtype) {
  constexpr Sizes kSizes[] = {{2, 16, 7, 7},   {1, 1, 1, 1},   {3, 17, 1, 1},  {1, 100, 5, 3},  {5, 3, 9, 33},
                              {1, 40, 60, 61}, {2, 320, 2, 2}, {1, 960, 7, 7}, {19, 24, 14, 14}};
  std::vector<SqueezeExciteCase> cases;
  for (const Sizes& sizes : kSizes) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const Activation activation : {Activation::hardswish, Activation::relu}) {
        cases.push_back({dtype, sizes, activation, Memories::all(memory)});
      }
    }
  }
  Random random(12);
  for (int i = 0; i < 100; ++i) {
    const Sizes sizes{between(random, 1, 5), between(random, 1, 40), between(random, 1, 10), between(random, 1, 33)};
    const Activation activation = one_of(random, kActivations);
    const Memories memories = Memories::random(random);
    cases.push_back({dtype, sizes, activation, memories, one_of(random, kInputMemories)});
  }
  return cases;
}

/// What the passes read.
struct SqueezeExciteTensors {
  Tensor x, grad_out, gate, grad_mean;
  Channels scale, shift;
  Activation activation;
  Precision precision;

  explicit SqueezeExciteTensors(const SqueezeExciteCase& problem)
      : x(problem.dtype, problem.sizes, problem.memories.x),
        grad_out(problem.dtype, problem.sizes, problem.memories.other),
        gate(problem.dtype, per_map(problem), problem.per_map),
        grad_mean(problem.dtype, per_map(problem), problem.per_map),
        scale(accumulation_type(problem.dtype), problem.sizes[1]),
        shift(accumulation_type(problem.dtype), problem.sizes[1]),
        activation(problem.activation),
        precision(problem.dtype) {
    Random random(7);
    x.fill(random, -1.5, 2);
    grad_out.fill(random, -1, 2);
    gate.fill(random, -0.5, 1);
    grad_mean.fill(random, -5, 5);
    scale.fill(random, -2, 2);
    shift.fill(random, -1, 4);
  }

  static Sizes per_map(const SqueezeExciteCase& problem) { return {problem.sizes[0], problem.sizes[1], 1, 1}; }

  Affine affine() const { return {scale.values(), shift.values(), activation}; }

  template <class Arguments>
  Arguments arguments() {
    Arguments a;
    a.x = x;
    a.scale = scale;
    a.shift = shift;
    a.activation = activation;
    if constexpr (requires { a.grad_out; }) a.grad_out = grad_out;
    if constexpr (requires { a.gate; }) a.gate = gate;
    if constexpr (requires { a.grad_mean; }) a.grad_mean = grad_mean;
    return a;
  }
};

inline void verify_squeeze(const SqueezeExciteCase& problem) {
  SqueezeExciteTensors inputs(problem);
  Tensor mean(problem.dtype, inputs.per_map(problem), problem.memories.y);
  auto arguments = inputs.arguments<SqueezeArguments>();
  arguments.mean = mean;
  verify(kSqueeze, arguments, {{"mean", mean, map_averages(inputs.precision, inputs.x.values(), inputs.affine())}});
}

inline void verify_excite(const SqueezeExciteCase& problem) {
  SqueezeExciteTensors inputs(problem);
  Tensor out(problem.dtype, problem.sizes, problem.memories.y);
  auto arguments = inputs.arguments<ExciteArguments>();
  arguments.out = out;
  const Array expected = gated(inputs.precision, inputs.x.values(), inputs.affine(), inputs.gate.values());
  verify(kExcite, arguments, {{"out", out, expected}});
}

inline void verify_excite_backward(const SqueezeExciteCase& problem) {
  SqueezeExciteTensors inputs(problem);
  Tensor grad_gate(problem.dtype, inputs.per_map(problem), problem.memories.y);
  auto arguments = inputs.arguments<ExciteBackwardArguments>();
  arguments.grad_gate = grad_gate;
  const Array expected = gate_gradient(inputs.precision, inputs.grad_out.values(), inputs.x.values(), inputs.affine());
  verify(kExciteBackward, arguments, {{"grad_gate", grad_gate, expected}});
}

inline void verify_squeeze_backward(const SqueezeExciteCase& problem) {
  SqueezeExciteTensors inputs(problem);
  const DataType sum_type = accumulation_type(problem.dtype);
  Random random(8);
  Channels mean = Channels(sum_type, problem.sizes[1]).fill(random, -1, 1);
  Channels sum(sum_type, problem.sizes[1]), centered(sum_type, problem.sizes[1]);
  Tensor grad(problem.dtype, problem.sizes, problem.memories.y);
  auto arguments = inputs.arguments<SqueezeBackwardArguments>();
  arguments.grad = grad;
  arguments.sums = {mean, sum, centered};
  const Array x = inputs.x.values();
  const Array expected = gated_gradient(inputs.precision, inputs.grad_out.values(), inputs.gate.values(),
                                        inputs.grad_mean.values(), x, inputs.affine());
  const Sums sums = gradient_sums(inputs.precision, expected, x, mean.values());
  const std::vector<Output> sum_outputs{{"sums.grad", sum, sums.grad},
                                        {"sums.grad_times_centered", centered, sums.grad_times_centered}};
  std::vector<Output> outputs = sum_outputs;
  outputs.push_back({"grad", grad, expected});
  GradientNormaliserTensors normaliser(sum_type, problem.sizes[1], coin(random));
  arguments.sums.normaliser = normaliser.arguments();
  const std::int64_t count = std::max<std::int64_t>(problem.sizes[0] * problem.sizes[2] * problem.sizes[3], 1);
  normaliser.expect(inputs.precision, mean.values(), sums, count, outputs);
  verify(kSqueezeBackward, arguments, outputs);

  arguments.sums.normaliser = {};  // in the place of grad_out, where each of its elements has a place of its own
  if (std::find(std::begin(kOutputMemories), std::end(kOutputMemories), problem.memories.other) ==
      std::end(kOutputMemories)) {
    return;
  }
  for (const Output& output : sum_outputs) output.tensor->wipe();
  Tensor& in_place = inputs.grad_out;
  arguments.grad = in_place;
  run(kSqueezeBackward, arguments);
  EXPECT_TRUE(Output("grad in the place of grad_out", in_place, expected).matches());
  for (const Output& output : sum_outputs) EXPECT_TRUE(output.matches()) << output.name << ", in place";
}

/// Without an image there is nothing to write but sums, of nothing.
inline void verify_empty_squeeze_excite(DataType dtype) {
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const SqueezeExciteCase problem{dtype, {0, 24, 5, 6}, Activation::hardswish, Memories::all(memory)};
    verify_squeeze(problem);
    verify_excite(problem);
    verify_excite_backward(problem);
    verify_squeeze_backward(problem);
  }
}

}  // namespace fusedsc::reference
