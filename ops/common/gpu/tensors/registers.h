/// What single registers are told, or have done to them in one instruction where there is one.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// The compiler shall not know how it came to its value, so that it stays in its register.
FUSEDSC_DEVICE void keep_in_register(float& value) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+f"(value));
#else
  static_cast<void>(value);
#endif
}

/// The same number, of which the compiler shall not know that it is, and which all threads have: what is computed of it
/// in a loop is computed there, and takes no registers around it.
template <class Number>
FUSEDSC_DEVICE Number computed_here(Number value) {
#if defined(__AMDGCN__)
  asm volatile("" : "=s"(value) : "0"(__builtin_amdgcn_readfirstlane(value)));  // which may be in a vector register
#endif
  return value;
}

/// The lower halves of two words, or their upper ones: the first's below.
FUSEDSC_DEVICE std::uint32_t halves_of(std::uint32_t first, std::uint32_t second, bool upper) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(first, second, upper ? 0x7632 : 0x5410);
#else
  return upper ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
#endif
}

/// Both halves of a word between those of two others; a NaN stays one.
template <class T>
FUSEDSC_DEVICE std::uint32_t clamped(std::uint32_t word, std::uint32_t low, std::uint32_t high, T) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t result;
  if constexpr (std::is_same_v<T, Float16>) {
    asm("{.reg .b32 t; max.NaN.f16x2 t, %1, %2; min.NaN.f16x2 %0, t, %3;}"
        : "=r"(result)
        : "r"(word), "r"(low), "r"(high));
  } else {
    asm("{.reg .b32 t; max.NaN.bf16x2 t, %1, %2; min.NaN.bf16x2 %0, t, %3;}"
        : "=r"(result)
        : "r"(word), "r"(low), "r"(high));
  }
  return result;
#else
  float values[2], lows[2], highs[2];
  to_floats(word, values[0], values[1], T());
  to_floats(low, lows[0], lows[1], T());
  to_floats(high, highs[0], highs[1], T());
  const auto clamp = [&](int i) { return propagating_min(propagating_max(values[i], lows[i]), highs[i]); };
  return to_bits(clamp(0), clamp(1), T());
#endif
}

}  // namespace fusedsc::gpu
