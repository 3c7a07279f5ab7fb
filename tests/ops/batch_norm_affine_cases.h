/// BatchNorm's arithmetic per channel and its two passes over tensors: cases, and how they are verified.
#pragma once

#include <cmath>
#include <limits>

#include "fusedsc/fused/batch_norm_affine.h"
#include "ops/cases.h"
#include "ops/gradient_normaliser.h"
#include "reference/conv_chain.h"

namespace fusedsc::reference {

// -------------------------------------------------------------------------------------------------------- per channel

constexpr std::int64_t kBatchNormChannels = 321;  ///< more than a block of a GPU takes

template <class Arguments>
std::size_t no_workspace(const Arguments&, int) {
  return 0;
}
constexpr Operator<BatchNormFinalizeArguments> kBatchNormFinalize{batch_norm_finalize,
                                                                  no_workspace<BatchNormFinalizeArguments>};

/// Vectors of `dtype`, an accumulation type.
struct BatchNormVectors {
  DataType dtype;
  Random random{9};

  Channels filled(double low, double high) { return Channels(dtype, kBatchNormChannels).fill(random, low, high); }
  Channels empty() const { return Channels(dtype, kBatchNormChannels); }
};

inline void verify_finalize(DataType dtype, bool training, bool has_parameters) {
  constexpr std::int64_t kCount = 100;
  constexpr double kEps = 1e-5;
  BatchNormVectors vectors{dtype};
  const Precision precision(dtype);
  Channels weight, bias, mean = vectors.filled(-1, 1), invstd = vectors.filled(0.5, 2), m2 = vectors.filled(0, 300);
  Channels batch_invstd = vectors.empty(), batch_variance = vectors.empty(), scale = vectors.empty(),
           shift = vectors.empty();
  BatchNormFinalizeArguments arguments;
  if (has_parameters) {
    weight = vectors.filled(-1, 2);
    bias = vectors.filled(-1, 2);
  }
  arguments.weight = weight;
  arguments.bias = bias;
  arguments.mean = mean;
  arguments.scale = scale;
  arguments.shift = shift;
  const Vector own = reference::invstd(precision, m2.values(), kCount, kEps);
  const Normalisation by{mean.values(), training ? own : invstd.values()};
  const Affine map = batch_norm(precision, weight.values(), bias.values(), by, Activation::identity);
  const std::vector<Output> affine = {{"scale", scale, map.scale}, {"shift", shift, map.shift}};
  if (!training) {
    arguments.invstd = invstd;
    return verify(kBatchNormFinalize, arguments, affine);
  }
  arguments.m2 = m2;
  arguments.count = kCount;
  arguments.eps = kEps;
  arguments.batch_invstd = batch_invstd;
  arguments.batch_variance = batch_variance;
  verify(kBatchNormFinalize, arguments,
         {affine[0],
          affine[1],
          {"batch_invstd", batch_invstd, own},
          {"batch_variance", batch_variance, variance(precision, m2.values(), kCount)}});

  Channels both = m2;  // invstd in the place of m2, alone
  arguments = {};
  arguments.mean = mean;
  arguments.m2 = both;
  arguments.batch_invstd = both;
  arguments.count = kCount;
  arguments.eps = kEps;
  run(kBatchNormFinalize, arguments);
  EXPECT_TRUE(Output("batch_invstd in the place of m2", both, own).matches());
}

/// Calls check(dtype, flag, other flag) for both values of both.
template <class Check>
void for_all_flags(DataType dtype, const Check& check) {
  for (const bool flag : {true, false}) {
    for (const bool other : {true, false}) {
      SCOPED_TRACE(std::string(flag ? "training" : "eval") + (other ? ", with parameters" : ""));
      check(dtype, flag, other);
    }
  }
}

// ------------------------------------------------------------------------------------------------- over whole tensors

constexpr Operator<BatchNormApplyArguments> kBatchNormApply{batch_norm_apply, batch_norm_apply_workspace_bytes};
constexpr Operator<BatchNormReduceArguments> kBatchNormReduce{batch_norm_reduce, batch_norm_reduce_workspace_bytes};

struct BatchNormCase {
  DataType dtype;
  Sizes sizes;
  Activation activation;
  bool residual;
  Memories memories;  ///< x; y: of out and grad; other: of residual and grad_y
  bool scales_images = false;
  bool affine = true;
};

inline std::ostream& operator<<(std::ostream& out, const BatchNormCase& problem) {
  return out << name_of(problem.dtype) << ", " << printed(problem.sizes) << ", " << name_of(problem.activation)
             << (problem.residual ? ", residual" : "") << (problem.scales_images ? ", image_scale" : "")
             << (problem.affine ? "" : ", no affine map") << "\n  " << problem.memories;
}

inline std::vector<BatchNormCase> batch_norm_cases(DataType dtype) {
  constexpr Sizes kSizes[] = {{2, 16, 7, 7}, {1, 1, 1, 1},  {3, 17, 1, 1},   {1, 100, 5, 3},
                              {5, 3, 9, 33}, {2, 8, 1, 40}, {1, 40, 60, 61}, {2, 320, 2, 2}};
  std::vector<BatchNormCase> cases;
  for (const Sizes& sizes : kSizes) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const bool residual : {false, true}) {
        cases.push_back({dtype, sizes, Activation::identity, residual, Memories::all(memory)});
        cases.push_back({dtype, sizes, Activation::relu6, residual, Memories::all(memory)});
        cases.back().scales_images = residual;
      }
    }
  }
  Random random(10);
  for (int i = 0; i < 100; ++i) {
    const Sizes sizes{between(random, 1, 5), between(random, 1, 40), between(random, 1, 10), between(random, 1, 33)};
    cases.push_back({dtype, sizes, one_of(random, kActivations), coin(random), Memories::random(random)});
    cases.back().scales_images = i % 3 == 0;
    cases.back().affine = i % 5 != 0;
  }
  return cases;
}

/// What applying and reducing read alike.
struct BatchNormInputs {
  Tensor x, other;
  Channels scale, shift, image_scale;

  explicit BatchNormInputs(const BatchNormCase& problem)
      : x(problem.dtype, problem.sizes, problem.memories.x),
        other(problem.dtype, problem.sizes, problem.memories.other) {
    Random random(7);
    const DataType vectors = accumulation_type(problem.dtype);
    x.fill(random, -1.5, 2);
    other.fill(random, -1, 2);
    if (problem.affine) {
      scale = Channels(vectors, problem.sizes[1]).fill(random, -2, 2);
      shift = Channels(vectors, problem.sizes[1]).fill(random, -1, 4);
    }
    if (problem.scales_images) image_scale = Channels(vectors, problem.sizes[0]).fill(random, -1, 2);
  }
  Affine affine(Activation activation) const { return {scale.values(), shift.values(), activation}; }
};

inline void verify_apply(const BatchNormCase& problem) {
  BatchNormInputs inputs(problem);
  Tensor out(problem.dtype, problem.sizes, problem.memories.y);
  BatchNormApplyArguments arguments;
  arguments.x = inputs.x;
  arguments.scale = inputs.scale;
  arguments.shift = inputs.shift;
  arguments.activation = problem.activation;
  arguments.image_scale = inputs.image_scale;
  if (problem.residual) arguments.residual = inputs.other;
  arguments.out = out;
  const Precision precision(problem.dtype);
  Array expected = apply(precision, inputs.x.values(), inputs.affine(problem.activation));
  expected = scale_images(precision, expected, inputs.image_scale.values());
  if (problem.residual) expected = add(precision, expected, inputs.other.values());
  verify(kBatchNormApply, arguments, {{"out", out, expected}});
}

/// The sums, with what is made of them and without; the gradient and the sums; the gradient alone.
inline void verify_reduce(const BatchNormCase& problem) {
  BatchNormInputs inputs(problem);
  const DataType sum_type = accumulation_type(problem.dtype);
  Random random(8);
  Channels mean = Channels(sum_type, problem.sizes[1]).fill(random, -1, 1);
  Channels grad(sum_type, problem.sizes[1]), grad_times_centered(sum_type, problem.sizes[1]);
  Tensor written(problem.dtype, problem.sizes, problem.memories.y);
  BatchNormReduceArguments arguments;
  arguments.x = inputs.x;
  arguments.grad_y = inputs.other;
  arguments.scale = inputs.scale;
  arguments.shift = inputs.shift;
  arguments.activation = problem.activation;
  arguments.sums = {mean, grad, grad_times_centered};
  const Precision precision(problem.dtype);
  const Array x = inputs.x.values();
  const auto gradient_of = [&](const Array& grad_y) {
    return apply_backward(precision, grad_y, x, inputs.affine(problem.activation));
  };
  const auto sums_of = [&](const Array& g) -> std::vector<Output> {
    const Sums expected = gradient_sums(precision, g, x, mean.values());
    return {{"sums.grad", grad, expected.grad},
            {"sums.grad_times_centered", grad_times_centered, expected.grad_times_centered}};
  };
  const Array g = gradient_of(inputs.other.values());
  std::vector<Output> outputs = sums_of(g);
  verify(kBatchNormReduce, arguments, outputs);

  GradientNormaliserTensors normaliser(sum_type, problem.sizes[1], problem.residual);
  arguments.sums.normaliser = normaliser.arguments();
  normaliser.expect(precision, mean.values(), gradient_sums(precision, g, x, mean.values()),
                    problem.sizes[0] * problem.sizes[2] * problem.sizes[3], outputs);
  verify(kBatchNormReduce, arguments, outputs);

  const Array scaled = gradient_of(scale_images(precision, inputs.other.values(), inputs.image_scale.values()));
  arguments.sums.normaliser = {};
  arguments.image_scale = inputs.image_scale;
  arguments.grad = written;
  outputs = sums_of(scaled);
  outputs.emplace_back("grad", written, scaled);
  verify(kBatchNormReduce, arguments, outputs);
  arguments.sums = {};
  verify(kBatchNormReduce, arguments, {outputs.back()});
}

/// In eval mode a gradient that is no number is no number in the parameters' gradients, and nowhere else.
inline void verify_reduce_of_nan(DataType dtype) {
  const BatchNormCase problem{dtype, {2, 8, 3, 4}, Activation::relu, false, Memories::all(Memory::contiguous)};
  BatchNormInputs inputs(problem);
  Array grad_y = inputs.other.values();
  grad_y.elements.front().value = std::numeric_limits<double>::quiet_NaN();
  inputs.other.fill(grad_y);
  const DataType sum_type = accumulation_type(dtype);
  Random random(8);
  Channels mean = Channels(sum_type, 8).fill(random, -1, 1), grad(sum_type, 8), centered(sum_type, 8);
  GradientNormaliserTensors normaliser(sum_type, 8, false);
  BatchNormReduceArguments arguments;
  arguments.x = inputs.x;
  arguments.grad_y = inputs.other;
  arguments.sums = {mean, grad, centered};
  arguments.sums.normaliser = normaliser.arguments();
  run(kBatchNormReduce, arguments);
  EXPECT_TRUE(std::isnan(grad.values().front().value));
  for (const Channels* other : {&normaliser.grad_scale, &normaliser.output_scale, &normaliser.offset}) {
    for (const Bounded& value : other->values()) EXPECT_TRUE(std::isfinite(value.value));
  }
}

}  // namespace fusedsc::reference
