/// BatchNorm of a batch that is spread over several processes: what is merged, and what is expected of it.
#pragma once

#include "fusedsc/fused/batch_norm_merge.h"
#include "ops/batch_norm_affine_cases.h"

namespace fusedsc::reference {

constexpr Operator<BatchNormMergeArguments> kBatchNormMerge{batch_norm_merge, no_workspace<BatchNormMergeArguments>};
constexpr Operator<BatchNormMergeGradientArguments> kBatchNormMergeGradient{
    batch_norm_merge_gradient, no_workspace<BatchNormMergeGradientArguments>};

/// Parts of different sizes, one of them empty.
inline void verify_merge(DataType dtype, bool has_parameters) {
  constexpr double kCounts[] = {12, 0, 50, 1};
  constexpr double kTotal = 63, kEps = 1e-5;
  constexpr std::size_t kChannels = kBatchNormChannels, kPitch = 2 * kChannels + 1;
  BatchNormVectors vectors{dtype};
  const Precision precision(dtype);
  const std::int64_t size = static_cast<std::int64_t>(std::size(kCounts) * kPitch);
  Channels parts = Channels(dtype, size).fill(vectors.random, -1, 3);
  Vector values = parts.values();
  for (std::size_t part = 0; part < std::size(kCounts); ++part) {
    for (std::size_t c = 0; c < kChannels; ++c) {
      Bounded& m2 = values[part * kPitch + kChannels + c];
      m2.value = std::abs(m2.value) * kCounts[part];
    }
    values[part * kPitch + 2 * kChannels].value = kCounts[part];
  }
  parts.fill(values);
  values = parts.values();

  Vector mean, m2;
  for (std::size_t c = 0; c < kChannels; ++c) {
    const auto sum_over_parts = [&](const auto& term) {
      Sum sum;
      for (std::size_t part = 0; part < std::size(kCounts); ++part) {
        if (kCounts[part] > 0) sum.add(term(Bounded{kCounts[part], 0}, &values[part * kPitch]));
      }
      return sum.result(precision);
    };
    mean.push_back(sum_over_parts([&](const Bounded& count, const Bounded* part) {
      return product({count.value / kTotal, 0}, part[c]);
    }));
    m2.push_back(sum_over_parts([&](const Bounded& count, const Bounded* part) {
      const Bounded deviation = sum_of(precision, {part[c], negative(mean.back())});
      return sum_of(precision, {part[kChannels + c], product(count, product(deviation, deviation))});
    }));
  }

  Channels weight, bias, own_mean = vectors.empty(), invstd = own_mean, variance_ = own_mean, scale = own_mean,
                         shift = own_mean;
  if (has_parameters) {
    weight = vectors.filled(-1, 2);
    bias = vectors.filled(-1, 2);
  }
  BatchNormMergeArguments arguments;
  arguments.parts = parts;
  arguments.count = std::size(kCounts);
  arguments.weight = weight;
  arguments.bias = bias;
  arguments.eps = kEps;
  arguments.mean = own_mean;
  arguments.invstd = invstd;
  arguments.variance = variance_;
  arguments.scale = scale;
  arguments.shift = shift;
  const auto count = static_cast<std::int64_t>(kTotal);
  const Vector own = reference::invstd(precision, m2, count, kEps);
  const Affine map = batch_norm(precision, weight.values(), bias.values(), {mean, own}, Activation::identity);
  verify(kBatchNormMerge, arguments,
         {{"mean", own_mean, mean},
          {"invstd", invstd, own},
          {"variance", variance_, variance(precision, m2, count)},
          {"scale", scale, map.scale},
          {"shift", shift, map.shift}});
}

inline void verify_merge_gradient(DataType dtype, bool has_parameters) {
  constexpr std::int64_t kCount = 40;
  constexpr std::size_t kChannels = kBatchNormChannels;
  BatchNormVectors vectors{dtype};
  const Precision precision(dtype);
  Channels sums = Channels(dtype, 2 * kBatchNormChannels + 1).fill(vectors.random, -3, 5);
  Vector values = sums.values();
  values.back().value = kCount;
  sums.fill(values);
  Channels weight, mean = vectors.filled(-1, 1), invstd = vectors.filled(0.5, 2);
  if (has_parameters) weight = vectors.filled(-1, 2);
  Channels grad_scale = vectors.empty(), output_scale = vectors.empty(), offset = vectors.empty();
  BatchNormMergeGradientArguments arguments;
  arguments.sums = sums;
  arguments.weight = weight;
  arguments.mean = mean;
  arguments.invstd = invstd;
  arguments.grad_scale = grad_scale;
  arguments.output_scale = output_scale;
  arguments.offset = offset;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(kChannels);
  const Sums of{{values.begin(), middle}, {middle, values.end() - 1}};
  const GradientAffine expected =
      batch_norm_backward(precision, weight.values(), {mean.values(), invstd.values()}, of, kCount, true).input;
  verify(kBatchNormMergeGradient, arguments,
         {{"grad_scale", grad_scale, expected.scale},
          {"output_scale", output_scale, expected.output_scale},
          {"offset", offset, expected.offset}});
}

}  // namespace fusedsc::reference
