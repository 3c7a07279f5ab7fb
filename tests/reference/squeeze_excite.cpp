#include "reference/squeeze_excite.h"

namespace fusedsc::reference {
namespace {

Bounded divided(const Bounded& a, std::int64_t by) {
  const auto divisor = static_cast<double>(by);
  return {a.value / divisor, a.error / divisor};
}

/// Per map, the sum of f(n, c, h, w) over its positions.
template <class Function>
Array map_sums(const Precision& precision, const Sizes& sizes, const Function& f) {
  Array result({sizes[0], sizes[1], 1, 1});
  for_each_index(result.sizes, [&](auto n, auto c, auto, auto) {
    Sum sum;
    for (std::int64_t h = 0; h < sizes[2]; ++h) {
      for (std::int64_t w = 0; w < sizes[3]; ++w) sum.add(f(n, c, h, w));
    }
    result.at(n, c, 0, 0) = sum.result(precision);
  });
  return result;
}

}  // namespace

Array map_averages(const Precision& precision, const Array& x, const Affine& map_) {
  const Array activated = apply(precision, x, map_);
  const auto sums = map_sums(precision, x.sizes, [&](auto... index) { return activated.at(index...); });
  return map(sums, [&](const Bounded& sum, std::size_t) {
    return sum_of(precision, {divided(sum, x.sizes[2] * x.sizes[3])});
  });
}

Array gated(const Precision& precision, const Array& x, const Affine& map_, const Array& gate) {
  Array result = apply(precision, x, map_);
  for_each_index(x.sizes, [&](auto n, auto c, auto h, auto w) {
    Bounded& element = result.at(n, c, h, w);
    element = sum_of(precision, {product(element, gate.at(n, c, 0, 0))});
  });
  return result;
}

Array gate_gradient(const Precision& precision, const Array& grad_out, const Array& x, const Affine& map_) {
  const Array activated = apply(precision, x, map_);
  return map_sums(precision, x.sizes,
                  [&](auto... index) { return product(grad_out.at(index...), activated.at(index...)); });
}

Array gated_gradient(const Precision& precision, const Array& grad_out, const Array& gate, const Array& grad_mean,
                     const Array& x, const Affine& map_) {
  Array grad = grad_out;
  for_each_index(x.sizes, [&](auto n, auto c, auto h, auto w) {
    Bounded& element = grad.at(n, c, h, w);
    const Bounded share = divided(grad_mean.at(n, c, 0, 0), x.sizes[2] * x.sizes[3]);
    element = sum_of(precision, {product(element, gate.at(n, c, 0, 0)), share});
  });
  return apply_backward(precision, grad, x, map_);
}

}  // namespace fusedsc::reference
