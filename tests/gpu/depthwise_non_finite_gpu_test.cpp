/// Depthwise GPU kernels on infinities and NaNs, few of them or nothing else: every output is what plain arithmetic
/// makes of its own window. Tensor cores would multiply them by zeros, too; how such outputs are told from others, and
/// computed again, depends on how many there are (forward/depthwise/rows/depthwise_window_sum.h).
#include <cmath>

#include "gpu/depthwise_forced.h"

namespace fusedsc::reference {
namespace {

class DepthwiseNonFiniteGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseNonFiniteGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

/// Those of tensor cores, and one of plain arithmetic, which says whether the test is right.
const Names kKernels{"gpu_rows",         "gpu_matrix",         "hopper_tiles",         "hopper_patches",
                     "forward_gpu_rows", "forward_gpu_matrix", "forward_hopper_tiles", "forward_hopper_patches"};

enum class Wild { few, all_nan, all_infinite, rows, channels };
constexpr Wild kWilds[] = {Wild::few, Wild::all_nan, Wild::all_infinite, Wild::rows, Wild::channels};

/// x with what is no number: some elements of either kind and sign, all, two rows in three, or whole channels.
Array with_wild(const Array& x, Wild wild) {
  Array result = x;
  Random random(13);
  for_each_index(x.sizes, [&](auto n, auto c, auto h, auto w) {
    double& value = result.at(n, c, h, w).value;
    switch (wild) {
      case Wild::few:
        if (random() % 61 == 0) value = random() % 2 == 0 ? NAN : std::copysign(HUGE_VAL, value);
        break;
      case Wild::all_nan: value = NAN; break;
      case Wild::all_infinite: value = std::copysign(HUGE_VAL, value); break;
      case Wild::rows:
        if (h % 3 != 1) value = NAN;
        break;
      case Wild::channels:
        if (c % 4 == 1) value = NAN;
        if (c % 8 == 6) value = -HUGE_VAL;
        break;
    }
  });
  return result;
}

/// One number, and the sum of the absolute values of what it is the sum of.
struct Plain {
  double value = 0, magnitude = 0;

  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

void expect(const Plain& plain, double actual, const Precision& precision, const char* what) {
  if (std::isnan(plain.value)) {
    ASSERT_TRUE(std::isnan(actual)) << what << ": " << actual << " in place of a NaN";
  } else if (std::isinf(plain.value)) {
    ASSERT_EQ(actual, plain.value) << what;
  } else {
    const Bounded bound = stored(precision, Bounded{plain.value, 1e-5 * plain.magnitude});
    ASSERT_LE(std::abs(actual - bound.value), bound.error) << what;
  }
}

/// Of y, from its own window, tap by tap.
Plain output(const ForwardTensors<DepthwiseGeometry>& tensors, const Window& window, const Array& x,
             const Array& weight, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  Plain sum;
  if (tensors.bias.values().size() > 0) sum.add(tensors.bias.values()[static_cast<std::size_t>(c)].value);
  for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
    for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw) {
      const std::int64_t row = h * window.stride[0] - window.padding.top + kh,
                         column = w * window.stride[1] - window.padding.left + kw;
      if (row < 0 || row >= x.sizes[2] || column < 0 || column >= x.sizes[3]) continue;
      sum.add(x.at(n, c, row, column).value * weight.at(c, 0, kh, kw).value);
    }
  }
  return sum;
}

/// Of grad_x, from the windows that it belongs to.
Plain input_gradient(const Window& window, const Array& grad_y, const Array& weight, std::int64_t n, std::int64_t c,
                     std::int64_t h, std::int64_t w) {
  Plain sum;
  for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
    for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw) {
      const std::int64_t row = h + window.padding.top - kh, column = w + window.padding.left - kw;
      if (row % window.stride[0] != 0 || column % window.stride[1] != 0) continue;
      const std::int64_t to_row = row / window.stride[0], to_column = column / window.stride[1];
      if (row < 0 || to_row >= grad_y.sizes[2] || column < 0 || to_column >= grad_y.sizes[3]) continue;
      sum.add(grad_y.at(n, c, to_row, to_column).value * weight.at(c, 0, kh, kw).value);
    }
  }
  return sum;
}

/// Enough for tiles and patches; several images to a tile, segments of whole rows, windows that are not centred.
std::vector<DepthwiseGeometry> geometries() {
  std::vector<DepthwiseGeometry> result;
  for (const std::int64_t stride : {1, 2}) {
    for (const std::int64_t kernel : {3, 5}) {
      const Window window = centered(kernel, stride);
      result.insert(result.end(), {{{3, 40, 7 * stride, 7 * stride}, window},
                                   {{2, 32, 9, 14 * stride}, window},
                                   {{1, 72, 6 * stride, 28 * stride}, window}});
    }
    result.push_back({{2, 24, 9 * stride, 10 * stride}, {{3, 3}, {stride, stride}, {1, 1}, {0, 2, 0, 2}}});
  }
  result.push_back({{1, 72, 11, 56}, centered(3, 2)});
  result.push_back({{1, 144, 5, 56}, centered(3)});
  result.push_back({{1, 144, 7, 56}, centered(5, 2)});
  result.push_back({{5, 24, 13, 15}, centered(5)});  // products of matrices
  for (const Sizes& x : std::initializer_list<Sizes>{{3, 40, 7, 7}, {2, 32, 9, 14}, {1, 24, 8, 28}}) {
    result.push_back({x, centered(7)});
  }
  return result;
}

TEST_P(DepthwiseNonFiniteGpu, Forward) {
  using enum ForwardFusion::Output;
  const Precision precision(GetParam().dtype);
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const ForwardFusion& fusion : {ForwardFusion{}, {.bias = true}, {.bias = true, .output = statistics}}) {
      if (fusion.bias && fusion.output != statistics && geometry.window.kernel[0] != 7) continue;
      for (const Wild wild : kWilds) {
        const ForwardCase<DepthwiseGeometry> problem{GetParam().dtype, geometry, fusion,
                                                     Memories::all(Memory::channels_last)};
        SCOPED_TRACE(testing::PrintToString(problem) + ", wild " + std::to_string(static_cast<int>(wild)));
        ForwardTensors<DepthwiseGeometry> tensors(problem);
        const Array x = with_wild(tensors.x.values(), wild), weight = tensors.weight.values();
        tensors.x.fill(x);
        const DepthwiseArguments arguments = tensors.arguments(problem);
        for (const auto& kernel : able(gpu::depthwise_gpu_kernels(), arguments, kKernels)) {
          SCOPED_TRACE(kernel.name);
          const Forced forced(kForwardRole, kernel.name);
          run(DepthwiseGeometry::kForward, arguments);
          const Array y = tensors.y.values();
          for_each_index(y.sizes, [&](auto... at) {
            if (HasFatalFailure()) return;
            expect(output(tensors, geometry.window, x, weight, at...), y.at(at...).value, precision, "y");
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(DepthwiseNonFiniteGpu, InputGradient) {
  const Precision precision(GetParam().dtype);
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Wild wild : kWilds) {
      const BackwardCase<DepthwiseGeometry> problem{
          GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, Memories::all(Memory::channels_last)};
      SCOPED_TRACE(testing::PrintToString(problem) + ", wild " + std::to_string(static_cast<int>(wild)));
      BackwardTensors<DepthwiseGeometry> tensors(problem);
      const Array grad_y = with_wild(tensors.grad_y.values(), wild), weight = tensors.weight.values();
      tensors.grad_y.fill(grad_y);
      const DepthwiseBackwardArguments arguments = tensors.arguments(problem);
      for (const auto& kernel : able(gpu::depthwise_input_kernels(), arguments, kKernels)) {
        SCOPED_TRACE(kernel.name);
        const Forced separate(kBackwardRole, "gpu_separate"), forced(kInputRole, kernel.name);
        run(DepthwiseGeometry::kBackward, arguments);
        const Array grad_x = tensors.grad_x.values();
        for_each_index(grad_x.sizes, [&](auto... at) {
          if (HasFatalFailure()) return;
          expect(input_gradient(geometry.window, grad_y, weight, at...), grad_x.at(at...).value, precision, "grad_x");
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace fusedsc::reference
