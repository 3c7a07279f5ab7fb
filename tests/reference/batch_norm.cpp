#include "reference/batch_norm.h"

namespace fusedsc::reference {
namespace {

Bounded one_or(const Vector& vector, std::size_t c) { return vector.empty() ? Bounded{1, 0} : vector[c]; }

/// a rounded once.
Bounded rounded(const Precision& precision, const Bounded& a) { return sum_of(precision, {a}); }

Bounded scaled(const Bounded& a, double factor) { return {a.value * factor, a.error * std::abs(factor)}; }

}  // namespace

Vector variance(const Precision& precision, const Vector& m2, std::int64_t count) {
  Vector result;
  const double share = 1 / static_cast<double>(std::max<std::int64_t>(count - 1, 1));
  for (const Bounded& sum : m2) result.push_back(rounded(precision, scaled(sum, share)));
  return result;
}

Vector invstd(const Precision& precision, const Vector& m2, std::int64_t count, double eps) {
  Vector result;
  for (const Bounded& sum : m2) {
    const Bounded variance = scaled(sum, 1 / static_cast<double>(count));
    const auto inverse_root = [&](double at) { return 1 / std::sqrt(std::max(at, 0.0) + eps); };
    result.push_back(apply(precision, inverse_root, variance));
  }
  return result;
}

BatchStatistics batch_statistics(const Precision& precision, const Array& x, double eps) {
  const std::int64_t count = x.elements_per_channel();
  const Moments sums = moments(precision, x);
  return {sums.mean, variance(precision, sums.m2, count), invstd(precision, sums.m2, count, eps)};
}

Affine batch_norm(const Precision& precision, const Vector& weight, const Vector& bias, const Normalisation& by,
                  Activation activation) {
  Affine map{{}, {}, activation};
  for (std::size_t c = 0; c < by.mean.size(); ++c) {
    const Bounded scale = rounded(precision, product(one_or(weight, c), by.invstd[c]));
    const Bounded bias_or_zero = bias.empty() ? Bounded{0, 0} : bias[c];
    map.scale.push_back(scale);
    map.shift.push_back(sum_of(precision, {bias_or_zero, negative(product(by.mean[c], scale))}));
  }
  return map;
}

BatchNormGradients batch_norm_backward(const Precision& precision, const Vector& weight, const Normalisation& by,
                                       const Sums& sums, std::int64_t count, bool training) {
  BatchNormGradients result;
  for (std::size_t c = 0; c < by.mean.size(); ++c) {
    const Bounded invstd = by.invstd[c];
    const Bounded scale = rounded(precision, product(one_or(weight, c), invstd));
    Bounded output_scale, offset;
    if (training) {
      // dx = scale * (g - mean of g - (x - mean) * invstd^2 * mean of g*(x - mean))
      const double share = -1 / static_cast<double>(count);
      const Bounded slope = rounded(precision, product(product(invstd, invstd), sums.grad_times_centered[c]));
      output_scale = rounded(precision, scaled(product(scale, slope), share));
      const Bounded mean_grad = scaled(product(scale, sums.grad[c]), share);
      offset = sum_of(precision, {mean_grad, negative(product(output_scale, by.mean[c]))});
    }
    result.input.scale.push_back(scale);
    result.input.output_scale.push_back(output_scale);
    result.input.offset.push_back(offset);
    result.weight.push_back(rounded(precision, product(sums.grad_times_centered[c], invstd)));
    result.bias.push_back(sums.grad[c]);
  }
  return result;
}

}  // namespace fusedsc::reference
