/// Pairs of 16-bit elements, of which some may be infinities or NaNs: tensor cores would multiply these by the zeros
/// of the other operand, and make NaNs of results that they have no part in.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// Of the bits of a type's elements: the last of the exponent; of two of them.
FUSEDSC_DEVICE constexpr std::uint32_t last_of_exponent(Float16) { return 0x04000400u; }
FUSEDSC_DEVICE constexpr std::uint32_t last_of_exponent(BFloat16) { return 0x00800080u; }

/// Both halves without their sign and one exponent more: the highest bit of a half is set where an element is not
/// finite, and it alone where that is an infinity.
template <class T>
FUSEDSC_DEVICE std::uint32_t beyond_finite(std::uint32_t pair) {
  return (pair & 0x7fff7fffu) + last_of_exponent(T());
}

/// All bits of the halves of which the highest is set.
FUSEDSC_DEVICE std::uint32_t spread_highest(std::uint32_t halves) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(halves, 0, 0xbb99);
#else
  return (halves >> 15 & 0x00010001u) * 0xffffu;
#endif
}

/// All bits of the halves that are not finite.
template <class T>
FUSEDSC_DEVICE std::uint32_t non_finite_mask(std::uint32_t pair) {
  return spread_highest(beyond_finite<T>(pair));
}

/// A sum of products of elements that are looked at, two pairs at a time: is_suspicious() where one of them is not
/// finite, and seldom where large ones overflow. To begin with it is 0.
FUSEDSC_DEVICE std::uint32_t looked_at(std::uint32_t first, std::uint32_t second, std::uint32_t sum, Float16) {
#if defined(__CUDA_ARCH__)
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(first), "r"(second));
  return sum;
#else
  return non_finite_mask<Float16>(first) | non_finite_mask<Float16>(second) | sum;
#endif
}
FUSEDSC_DEVICE std::uint32_t looked_at(std::uint32_t first, std::uint32_t second, std::uint32_t sum, BFloat16) {
#if defined(__CUDA_ARCH__)
  asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(first), "r"(second));
  return sum;
#else
  return non_finite_mask<BFloat16>(first) | non_finite_mask<BFloat16>(second) | sum;
#endif
}
template <class T>
FUSEDSC_DEVICE bool is_suspicious(std::uint32_t sum) {
  return (beyond_finite<T>(sum) & 0x80008000u) != 0;
}

/// By all threads of a product (wave_product.h): whether it is so for any of them.
#if defined(FUSEDSC_HOST_EXECUTOR)
inline bool any_of_product(bool condition) {
  int any = condition ? 1 : 0;
  for (int mask = 1; mask < wave_size(); mask *= 2) any |= shuffle_xor(any, mask);  // wider waves have several products
  return any != 0;
}
#elif defined(__CUDACC__)
FUSEDSC_DEVICE bool any_of_product(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }
#else
FUSEDSC_DEVICE bool any_of_product(bool condition) { return __ballot(condition) != 0; }
#endif

}  // namespace fusedsc::gpu
