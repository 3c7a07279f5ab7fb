/// Rows of x with infinities or NaNs in the depthwise kernels of patches for Hopper GPUs. Zeros of B would make NaNs of
/// what such an element has no part in. So it is replaced by 0 for the products, and two more products count: how many
/// of them an output's window has in this row; and the infinities among them, with their signs times those of the
/// weights. Equal counts make an infinity, others a NaN: there is a NaN, or a weight of 0, or infinities of both signs.
/// That is added to the sum, which carries it on. Rows that are finite have nothing of it.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/products/non_finite.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/sums/keep_order.h"

namespace fusedsc::gpu::hopper {

FUSEDSC_DEVICE constexpr std::uint32_t one_of(Float16) { return 0x3c00u; }
FUSEDSC_DEVICE constexpr std::uint32_t one_of(BFloat16) { return 0x3f80u; }

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Adds a row of x to rows of sums that see it, by all lanes of a warp; of a pair of channels and kGroups groups of 4
/// columns. words: of A, both halves of the patches, group by group; bands: B, with one_of() in place of each tap's
/// weight. for_each_sum(add) calls add(sums, word) for every row of sums; word(i): of B, of the row of the window.
template <class T, int kGroups, class ForEachSum>
FUSEDSC_DEVICE void add_non_finite_patches(const std::uint32_t (&words)[2 * kGroups],
                                           const std::uint32_t (&bands)[kGroups], const ForEachSum& for_each_sum) {
  constexpr std::uint32_t kTwo = 0x40004000u;  // in both types, in both halves
  constexpr float kHuge = 0x1p127f;            // times what is counted, in twos: an infinity
  const auto multiply = [](const std::uint32_t(&a)[2 * kGroups], const std::uint32_t(&b)[kGroups], float(&sums)[4]) {
    if constexpr (kGroups > 1) wave_multiply_add(sums, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, T());
    if constexpr (kGroups % 2 == 1) {
      wave_multiply_add_half(sums, {a[2 * kGroups - 2], a[2 * kGroups - 1]}, b[kGroups - 1], T());
    }
  };
  std::uint32_t finite[2 * kGroups], any = 0;
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    const std::uint32_t mask = non_finite_mask<T>(words[i]);
    finite[i] = words[i] & ~mask;
    any |= mask;
  }
  for_each_sum([&](float(&sums)[4], const auto& word) {
    std::uint32_t weights[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) weights[i] = word(i);
    multiply(finite, weights, sums);
  });
  if (!any_of_warp(any != 0)) return;

  std::uint32_t sign_bits = 0x80008000u;
  hide_origin(sign_bits);  // or compilers would work out the signs of all weights before a loop
  std::uint32_t counted[2 * kGroups], with_signs[2 * kGroups], any_infinity = 0;
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    const std::uint32_t beyond = beyond_finite<T>(words[i]), mask = spread_highest(beyond),
                        nan = spread_highest(beyond - 0x00010001u);
    counted[i] = mask & kTwo;
    with_signs[i] = mask & ~nan & ((words[i] & sign_bits) | kTwo);
    any_infinity |= with_signs[i];
  }
  if (!any_of_warp(any_infinity != 0)) {
    for_each_sum([&](float(&sums)[4], const auto&) {
      float count[4] = {};
      multiply(counted, bands, count);
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[v] = fmaf(count[v] * kHuge, 0.0f, sums[v]);  // 0, or infinity times 0
    });
    return;
  }
  for_each_sum([&](float(&sums)[4], const auto& word) {
    // Where there are many infinities, all sums are soon NaNs, which nothing changes; of numbers there is a greatest.
    const float greatest = fmaxf(fmaxf(sums[0], sums[1]), fmaxf(sums[2], sums[3]));
    if (!any_of_warp(greatest == greatest)) return;
    float count[4] = {}, difference[4] = {};
    multiply(counted, bands, count);
    std::uint32_t signs[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const std::uint32_t weights = word(i);
      signs[i] = (weights & sign_bits) | ((weights & ~sign_bits) != 0 ? bands[i] : 0u);
    }
    multiply(with_signs, signs, difference);
#pragma unroll
    for (int v = 0; v < 4; ++v) sums[v] += fabsf(difference[v]) == count[v] ? difference[v] * kHuge : kNan;
  });
}

}  // namespace fusedsc::gpu::hopper
