/// What is not finite stays where it belongs: in its channel, and in the outputs that see it.
#pragma once

#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {

/// Infinities and NaNs in some channels of x, at some positions of each.
inline Array with_wild_elements(const Array& x, Array& wild) {
  Array result = x;
  wild = Array(x.sizes);
  const auto put = [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, double value) {
    result.at(n, c, h, w).value = value;
    wild.at(n, c, h, w).value = 1;
  };
  const Sizes& size = x.sizes;
  put(0, 3, 0, 0, HUGE_VAL);
  put(0, 9, size[2] / 2, size[3] / 2, NAN);
  put(size[0] - 1, size[1] - 2, size[2] - 1, size[3] - 1, -HUGE_VAL);
  return result;
}

/// What is not finite in one channel stays there, and in the outputs that see it.
inline void verify_isolation(const ForwardCase<DepthwiseGeometry>& problem) {
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  const Precision precision(problem.dtype);
  const Array raw = tensors.raw_output(problem), expected = tensors.output(problem, raw);
  Array wild, ones(tensors.weight.sizes());
  for (Bounded& element : ones.elements) element.value = 1;
  tensors.x.fill(with_wild_elements(tensors.x.values(), wild));
  const Array affected = problem.geometry.forward(precision, wild, ones, {});
  const auto arguments = tensors.arguments(problem);
  run(DepthwiseGeometry::kForward, arguments);

  const Array y = tensors.y.values();
  std::vector<bool> is_wild(static_cast<std::size_t>(y.sizes[1]));
  for_each_index(y.sizes, [&](auto n, auto c, auto h, auto w) {
    const double value = y.at(n, c, h, w).value;
    if (affected.at(n, c, h, w).value > 0) {
      is_wild[static_cast<std::size_t>(c)] = true;
      return;
    }
    const Bounded bound = stored(precision, expected.at(n, c, h, w));
    ASSERT_LE(std::abs(value - bound.value), bound.error) << "[" << n << ", " << c << ", " << h << ", " << w << "]";
  });
  for (std::size_t c = 0; problem.has_statistics() && c < is_wild.size(); ++c) {
    const Vector mean = moments(precision, raw).mean, actual = tensors.mean.values();
    if (is_wild[c]) continue;
    ASSERT_LE(std::abs(actual[c].value - mean[c].value), mean[c].error) << "mean of channel " << c;
  }
}

}  // namespace fusedsc::reference
