/// Activations at their kinks, far out and at NaN, through every prologue and epilogue that applies them.
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/each_target.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

constexpr double kPoints[] = {-200, -90, -6, -3, -1, -0.0, 0, 1, 3, 6, 7, 90, 200};

Array points(const Sizes& sizes) {
  Array x(sizes);
  for (std::size_t i = 0; i < x.elements.size(); ++i) x.elements[i].value = kPoints[i % std::size(kPoints)];
  return x;
}

/// Convolutions that hand their input on.
const DepthwiseGeometry kDepthwise{{1, 19, 3, 13}, {{1, 1}, {1, 1}, {1, 1}, {}}};
const PointwiseGeometry kPointwise{{1, 19, 3, 13}, 19};

void set_to_identity(const DepthwiseGeometry&, Tensor& weight) {
  Array ones(weight.sizes());
  for (Bounded& element : ones.elements) element.value = 1;
  weight.fill(ones);
}

void set_to_identity(const PointwiseGeometry&, Tensor& weight) {
  Array identity(weight.sizes());
  for (std::int64_t c = 0; c < identity.channels(); ++c) identity.at(c, c, 0, 0).value = 1;
  weight.fill(identity);
}

struct Case {
  DataType dtype;
  Activation activation;
  Memory memory;
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const DataType dtype : kDataTypes) {
    for (const Activation activation : kActivations) {
      for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
        cases.push_back({dtype, activation, memory});
      }
    }
  }
  return cases;
}

std::ostream& operator<<(std::ostream& out, const Case& problem) {
  return out << name_of(problem.dtype) << ", " << name_of(problem.activation) << ", " << name_of(problem.memory);
}

/// Runs the forward pass with the activation in the prologue or in the epilogue, on `x`.
template <class Geometry>
ForwardTensors<Geometry> activate_with(const Geometry& geometry, const Case& problem, bool in_epilogue,
                                       const Array& x) {
  ForwardFusion fusion;
  (in_epilogue ? fusion.epilogue_activation : fusion.activation) = problem.activation;
  if (in_epilogue) fusion.output = ForwardFusion::Output::epilogue;
  const ForwardCase<Geometry> forward{problem.dtype, geometry, fusion, Memories::all(problem.memory)};
  ForwardTensors<Geometry> tensors(forward);
  tensors.epilogue_scale = tensors.epilogue_shift = Channels();
  set_to_identity(geometry, tensors.weight);
  tensors.x.fill(x);
  run(Geometry::kForward, tensors.arguments(forward));
  return tensors;
}

template <class Geometry>
void verify_values(const Geometry& geometry, const Case& problem) {
  const Array x = points(geometry.x);
  const Array expected = apply(Precision(problem.dtype), x, {{}, {}, problem.activation});
  for (const bool in_epilogue : {false, true}) {
    const auto tensors = activate_with(geometry, problem, in_epilogue, x);
    EXPECT_TRUE(matches(tensors.y, expected)) << (in_epilogue ? "epilogue" : "prologue");
  }
}

/// NaN must reach the loss, where it is noticed; an activation that made a number of it would hide it.
template <class Geometry>
void verify_nan(const Geometry& geometry, const Case& problem) {
  Array nan(geometry.x);
  for (Bounded& element : nan.elements) element.value = std::numeric_limits<double>::quiet_NaN();
  for (const bool in_epilogue : {false, true}) {
    const auto tensors = activate_with(geometry, problem, in_epilogue, nan);
    std::int64_t lost = 0;
    for (const Bounded& element : tensors.y.values().elements) lost += !std::isnan(element.value);
    EXPECT_EQ(lost, 0) << (in_epilogue ? "epilogue" : "prologue");
  }
}

template <class Geometry>
void verify_derivatives(const Geometry& geometry, const Case& problem) {
  const BackwardCase<Geometry> backward{
      problem.dtype, geometry, {.activation = problem.activation}, Memories::all(problem.memory)};
  BackwardTensors<Geometry> tensors(backward);
  set_to_identity(geometry, tensors.weight);
  const Array x = points(geometry.x);
  tensors.x.fill(x);
  run(Geometry::kBackward, tensors.arguments(backward));
  const Array grad_y = tensors.grad_y.values();
  EXPECT_TRUE(
      matches(tensors.grad_x, apply_backward(Precision(problem.dtype), grad_y, x, {{}, {}, problem.activation})));
}

/// y = activation(x) and its slopes, by depthwise convolutions.
struct Curve {
  Array y, slopes;

  Curve(Activation activation, DataType dtype, const Array& x) {
    const DepthwiseGeometry geometry{x.sizes, kDepthwise.window};
    const Memory memory = Memory::contiguous;
    y = activate_with(geometry, {dtype, activation, memory}, true, x).y.values();
    const BackwardCase<DepthwiseGeometry> backward{dtype, geometry, {.activation = activation}, Memories::all(memory)};
    BackwardTensors<DepthwiseGeometry> tensors(backward);
    set_to_identity(geometry, tensors.weight);
    Array ones(x.sizes);
    for (Bounded& element : ones.elements) element.value = 1;
    tensors.x.fill(x);
    tensors.grad_y.fill(ones);
    run(DepthwiseGeometry::kBackward, tensors.arguments(backward));
    slopes = tensors.grad_x.values();
  }
};

/// The tests with random numbers allow for errors in proportion to z, which far out is nearly everything. Ten roundings
/// may come together, half a unit each.
void verify_gelu_far_out(DataType dtype, double farthest) {
  const double bound = 5 * Precision(dtype).accumulation;
  Array x({1, 3, 60, 61});
  Random random(5);
  for (Bounded& element : x.elements) {
    const double z = farthest * (static_cast<double>(random() % 2000001) / 1e6 - 1);
    element.value = dtype == DataType::float32 ? static_cast<float>(z) : z;
  }
  const Curve gelu(Activation::gelu, dtype, x);
  for (std::size_t i = 0; i < x.elements.size(); ++i) {
    const long double z = x.elements[i].value, below = std::erfc(-z * std::sqrt(0.5L)) / 2;
    const long double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
    ASSERT_LE(std::abs(gelu.y.elements[i].value - z * below), bound * std::abs(z * below)) << z;
    ASSERT_LE(std::abs(gelu.slopes.elements[i].value - (below + z * density)), bound * (below + std::abs(z * density)))
        << z;
  }
}

class ActivationFusion : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, ActivationFusion, EachTarget::all(), EachTarget::name);

TEST_P(ActivationFusion, ValuesAtKinksAndFarOut) {
  for_each_case(cases(), [](const Case& problem) {
    verify_values(kDepthwise, problem);
    verify_values(kPointwise, problem);
  });
}

TEST_P(ActivationFusion, DerivativesAtKinksAndFarOut) {
  for_each_case(cases(), [](const Case& problem) {
    verify_derivatives(kDepthwise, problem);
    verify_derivatives(kPointwise, problem);
  });
}

TEST_P(ActivationFusion, GeluIsAccurateFarOut) {
  verify_gelu_far_out(DataType::float64, 36);
  verify_gelu_far_out(DataType::float32, 12);
}

/// Infinities, and numbers whose squares are beyond the type, or that are nearly so themselves.
Array far_out(std::initializer_list<double> values) {
  Array x({1, 1, 1, static_cast<std::int64_t>(values.size())});
  for (std::int64_t i = 0; const double value : values) x.at(0, 0, 0, i++).value = value;
  return x;
}

/// What PyTorch makes of infinities, and of what overflows when squared.
TEST_P(ActivationFusion, GeluOfInfinities) {
  for (const DataType dtype : {DataType::float64, DataType::float32}) {
    const double large = dtype == DataType::float64 ? 1e200 : 1e30;
    const Curve gelu(Activation::gelu, dtype, far_out({HUGE_VAL, -HUGE_VAL, large, -large}));
    EXPECT_EQ(gelu.y.elements[0].value, HUGE_VAL);
    EXPECT_TRUE(std::isnan(gelu.y.elements[1].value));
    EXPECT_NEAR(gelu.y.elements[2].value / large, 1, 1e-6);
    EXPECT_EQ(gelu.y.elements[3].value, 0);
    EXPECT_TRUE(std::isnan(gelu.slopes.elements[0].value) && std::isnan(gelu.slopes.elements[1].value));
    EXPECT_EQ(gelu.slopes.elements[2].value, 1);
    EXPECT_EQ(gelu.slopes.elements[3].value, 0);
  }
}

/// Likewise; exp(-z) is infinite of the large ones, and has most of its range left at the last.
TEST_P(ActivationFusion, SiluOfInfinities) {
  for (const DataType dtype : {DataType::float64, DataType::float32}) {
    const double large = dtype == DataType::float64 ? 1.7e308 : 3.4e38;
    const double least = dtype == DataType::float64 ? -709.7 : -88.7;
    const Curve silu(Activation::silu, dtype, far_out({HUGE_VAL, -HUGE_VAL, large, -large, -1000, least}));
    EXPECT_EQ(silu.y.elements[0].value, HUGE_VAL);
    EXPECT_TRUE(std::isnan(silu.y.elements[1].value));
    EXPECT_NEAR(silu.y.elements[2].value / large, 1, 1e-6);
    EXPECT_EQ(silu.y.elements[3].value, 0);
    EXPECT_EQ(silu.y.elements[4].value, 0);
    EXPECT_NEAR(silu.y.elements[5].value / (least * std::exp(least)), 1, 1e-5);
    EXPECT_TRUE(std::isnan(silu.slopes.elements[0].value) && std::isnan(silu.slopes.elements[1].value));
    EXPECT_EQ(silu.slopes.elements[2].value, 1);
    EXPECT_EQ(silu.slopes.elements[3].value, 0);
    EXPECT_EQ(silu.slopes.elements[4].value, 0);
  }
}

TEST_P(ActivationFusion, NanIsKept) {
  for_each_case(cases(), [](const Case& problem) {
    verify_nan(kDepthwise, problem);
    verify_nan(kPointwise, problem);
  });
}

}  // namespace
}  // namespace fusedsc::reference
