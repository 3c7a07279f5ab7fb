#include "reference/fusion.h"

namespace fusedsc::reference {

Array affine(const Precision& precision, const Array& x, const Affine& map_) {
  return map(x, [&](const Bounded& element, std::size_t c) {
    const Bounded scaled = map_.scale.empty() ? element : product(map_.scale[c], element);
    if (map_.shift.empty()) return map_.scale.empty() ? element : sum_of(precision, {scaled});
    return sum_of(precision, {scaled, map_.shift[c]});
  });
}

Array apply(const Precision& precision, const Array& x, const Affine& map_) {
  return map(affine(precision, x, map_),
             [&](const Bounded& z, std::size_t) { return activate(precision, map_.activation, z); });
}

Array apply_backward(const Precision& precision, const Array& grad, const Array& x, const Affine& map_) {
  return zip(grad, affine(precision, x, map_), [&](const Bounded& g, const Bounded& z, std::size_t) {
    return sum_of(precision, {product(g, derivative(precision, map_.activation, z))});
  });
}

Array add(const Precision& precision, const Array& a, const Array& b) {
  return zip(a, b, [&](const Bounded& x, const Bounded& y, std::size_t) { return sum_of(precision, {x, y}); });
}

Array stored(const Precision& precision, const Array& x) {
  return map(x, [&](const Bounded& element, std::size_t) { return stored(precision, element); });
}

Moments moments(const Precision& precision, const Array& x) {
  Moments result;
  const double inverse = 1.0 / static_cast<double>(x.elements_per_channel());
  for (const Bounded& sum : channel_sums(precision, x)) {
    result.mean.push_back({sum.value * inverse, sum.error * inverse});
  }
  result.m2 = channel_sums(precision, x.sizes, [&](auto n, auto c, auto h, auto w) {
    const Bounded deviation = sum_of(precision, {x.at(n, c, h, w), negative(result.mean[static_cast<std::size_t>(c)])});
    return product(deviation, deviation);
  });
  return result;
}

Array apply(const Precision& precision, const Array& grad, const Array& output, const GradientAffine& map_) {
  return zip(grad, output, [&](const Bounded& g, const Bounded& y, std::size_t c) {
    return sum_of(precision, {product(map_.scale[c], g), product(map_.output_scale[c], y), map_.offset[c]});
  });
}

Sums gradient_sums(const Precision& precision, const Array& grad, const Array& x, const Vector& mean) {
  const Vector centered = channel_sums(precision, x.sizes, [&](auto n, auto c, auto h, auto w) {
    const Bounded deviation = sum_of(precision, {x.at(n, c, h, w), negative(mean[static_cast<std::size_t>(c)])});
    return product(grad.at(n, c, h, w), deviation);
  });
  return {channel_sums(precision, grad), centered};
}

}  // namespace fusedsc::reference
