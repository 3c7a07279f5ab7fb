#include "fusedsc/fused/batch_norm_seam.h"

#include "ops/cases.h"
#include "ops/verify.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {
namespace {

constexpr DataType kSumTypes[] = {DataType::float32, DataType::float64};
constexpr std::int64_t kChannels = 21;

class BatchNormVectors : public testing::TestWithParam<DataType> {
 protected:
  Channels filled(double low, double high) {
    Channels vector(GetParam(), kChannels);
    vector.fill(random_, low, high);
    return vector;
  }
  Channels empty() const { return Channels(GetParam(), kChannels); }
  static void expect(const char* name, const Channels& actual, const Vector& expected) {
    Array array(actual.tensor().sizes());
    array.elements = expected;
    EXPECT_TRUE(matches(actual.tensor(), array)) << name;
  }

  Random random_{9};
  Precision precision_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(SumTypes, BatchNormVectors, testing::ValuesIn(kSumTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormVectors, Affine) {
  for (const bool has_parameters : {true, false}) {
    Channels weight, bias, mean = filled(-1, 1), invstd = filled(0.5, 2), scale = empty(), shift = empty();
    if (has_parameters) {
      weight = filled(-1, 2);
      bias = filled(-1, 2);
    }
    batch_norm_affine(weight, bias, mean, invstd, scale, shift);
    const Normalisation by{mean.values(), invstd.values()};
    const Affine map = batch_norm(precision_, weight.values(), bias.values(), by, Activation::identity);
    expect("scale", scale, map.scale);
    expect("shift", shift, map.shift);
  }
}

TEST_P(BatchNormVectors, Invstd) {
  Channels m2 = filled(0, 300), result = empty();
  batch_norm_invstd(m2, 100, 1e-5, result);
  const Vector expected = invstd(precision_, m2.values(), 100, 1e-5);
  expect("invstd", result, expected);
  batch_norm_invstd(m2, 100, 1e-5, m2);
  expect("invstd in the place of m2", m2, expected);
}

TEST_P(BatchNormVectors, BackwardCoefficients) {
  constexpr std::int64_t kCount = 50;
  for (const bool training : {true, false}) {
    for (const bool has_weight : {true, false}) {
      Channels weight, mean = filled(-1, 1), invstd = filled(0.5, 2);
      Channels sum_grad = filled(-20, 20), sum_centered = filled(-20, 20);
      Channels grad_scale = empty(), output_scale = empty(), offset = empty();
      Channels grad_weight = empty(), grad_bias = empty();
      if (has_weight) weight = filled(-1, 2);
      BatchNormBackward arguments;
      arguments.weight = weight;
      arguments.mean = mean;
      arguments.invstd = invstd;
      arguments.sum_grad = sum_grad;
      arguments.sum_grad_times_centered = sum_centered;
      arguments.count = kCount;
      arguments.training = training;
      arguments.grad_scale = grad_scale;
      arguments.output_scale = output_scale;
      arguments.offset = offset;
      if (has_weight) {
        arguments.grad_weight = grad_weight;
        arguments.grad_bias = grad_bias;
      }
      batch_norm_backward_coefficients(arguments);
      const BatchNormGradients expected =
          batch_norm_backward(precision_, weight.values(), {mean.values(), invstd.values()},
                              {sum_grad.values(), sum_centered.values()}, kCount, training);
      expect("grad_scale", grad_scale, expected.input.scale);
      expect("output_scale", output_scale, expected.input.output_scale);
      expect("offset", offset, expected.input.offset);
      if (!has_weight) continue;
      expect("grad_weight", grad_weight, expected.weight);
      expect("grad_bias", grad_bias, expected.bias);
    }
  }
}

constexpr Operator<BatchNormApplyArguments> kApply{batch_norm_apply, batch_norm_apply_workspace_bytes};
constexpr Operator<BatchNormReduceArguments> kReduce{batch_norm_reduce, batch_norm_reduce_workspace_bytes};

struct Case {
  DataType dtype;
  Sizes sizes;
  Activation activation;
  bool residual;
  Memories memories;  ///< x; y: of out; other: of residual and grad_y
};

std::ostream& operator<<(std::ostream& out, const Case& problem) {
  return out << name_of(problem.dtype) << ", " << printed(problem.sizes) << ", " << name_of(problem.activation)
             << (problem.residual ? ", residual" : "") << "\n  " << problem.memories;
}

std::vector<Case> cases(DataType dtype) {
  constexpr Sizes kSizes[] = {{2, 16, 7, 7}, {1, 1, 1, 1},  {3, 17, 1, 1},   {1, 100, 5, 3},
                              {5, 3, 9, 33}, {2, 8, 1, 40}, {1, 40, 60, 61}, {2, 320, 2, 2}};
  std::vector<Case> cases;
  for (const Sizes& sizes : kSizes) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const bool residual : {false, true}) {
        cases.push_back({dtype, sizes, Activation::identity, residual, Memories::all(memory)});
        cases.push_back({dtype, sizes, Activation::relu6, residual, Memories::all(memory)});
      }
    }
  }
  Random random(10);
  for (int i = 0; i < 100; ++i) {
    const Sizes sizes{between(random, 1, 5), between(random, 1, 40), between(random, 1, 10), between(random, 1, 33)};
    cases.push_back({dtype, sizes, one_of(random, kActivations), coin(random), Memories::random(random)});
  }
  return cases;
}

/// What applying and reducing read alike.
struct Inputs {
  Tensor x, other;
  Channels scale, shift;

  explicit Inputs(const Case& problem)
      : x(problem.dtype, problem.sizes, problem.memories.x),
        other(problem.dtype, problem.sizes, problem.memories.other),
        scale(accumulation_type(problem.dtype), problem.sizes[1]),
        shift(accumulation_type(problem.dtype), problem.sizes[1]) {
    Random random(7);
    x.fill(random, -1.5, 2);
    other.fill(random, -1, 2);
    scale.fill(random, -2, 2);
    shift.fill(random, -1, 4);
  }
  Affine affine(Activation activation) const { return {scale.values(), shift.values(), activation}; }
};

void verify_apply(const Case& problem) {
  Inputs inputs(problem);
  Tensor out(problem.dtype, problem.sizes, problem.memories.y);
  BatchNormApplyArguments arguments;
  arguments.x = inputs.x;
  arguments.scale = inputs.scale;
  arguments.shift = inputs.shift;
  arguments.activation = problem.activation;
  if (problem.residual) arguments.residual = inputs.other;
  arguments.out = out;
  const Precision precision(problem.dtype);
  Array expected = apply(precision, inputs.x.values(), inputs.affine(problem.activation));
  if (problem.residual) expected = add(precision, expected, inputs.other.values());
  verify(kApply, arguments, {{"out", out, expected}});
}

void verify_reduce(const Case& problem) {
  Inputs inputs(problem);
  const DataType sum_type = accumulation_type(problem.dtype);
  Random random(8);
  Channels mean = Channels(sum_type, problem.sizes[1]).fill(random, -1, 1);
  Channels grad(sum_type, problem.sizes[1]), grad_times_centered(sum_type, problem.sizes[1]);
  BatchNormReduceArguments arguments;
  arguments.x = inputs.x;
  arguments.grad_y = inputs.other;
  arguments.scale = inputs.scale;
  arguments.shift = inputs.shift;
  arguments.activation = problem.activation;
  arguments.sums = {mean, grad, grad_times_centered};
  const Precision precision(problem.dtype);
  const Array x = inputs.x.values();
  const Array g = apply_backward(precision, inputs.other.values(), x, inputs.affine(problem.activation));
  const Sums expected = gradient_sums(precision, g, x, mean.values());
  verify(kReduce, arguments,
         {{"sums.grad", grad, expected.grad},
          {"sums.grad_times_centered", grad_times_centered, expected.grad_times_centered}});
}

class BatchNormPass : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, BatchNormPass, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormPass, Apply) { for_each_case(cases(GetParam()), verify_apply); }
TEST_P(BatchNormPass, Reduce) { for_each_case(cases(GetParam()), verify_reduce); }

}  // namespace
}  // namespace fusedsc::reference
