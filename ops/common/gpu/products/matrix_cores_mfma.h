/// Products by the matrix cores of AMD's data centre GPUs: v_mfma of gfx90a, gfx942 and gfx950, with waves of 64
/// threads. The layouts are those of the CDNA2 and CDNA3 manuals.
#pragma once

#include "fusedsc/common/gpu/products/matrix_cores.h"

namespace fusedsc::gpu {

#if !defined(FUSEDSC_HOST_EXECUTOR)
/// A lane's elements of D: a vector, of which the compiler knows that its registers are neighbours.
template <class A>
using MfmaSums = A __attribute__((ext_vector_type(4)));

FUSEDSC_DEVICE void mfma(MfmaSums<float>& d, const std::uint32_t (&a)[2], const std::uint32_t (&b)[2], Float16) {
  using Halves = _Float16 __attribute__((ext_vector_type(4)));
  d = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d, 0, 0, 0);
}
FUSEDSC_DEVICE void mfma(MfmaSums<float>& d, const std::uint32_t (&a)[2], const std::uint32_t (&b)[2], BFloat16) {
  using Halves = short __attribute__((ext_vector_type(4)));
  d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d, 0, 0,
                                                0);
}
FUSEDSC_DEVICE void mfma(MfmaSums<float>& d, float a, float b) {
  d = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, d, 0, 0, 0);
}
FUSEDSC_DEVICE void mfma(MfmaSums<double>& d, double a, double b) {
  d = __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, d, 0, 0, 0);
}
FUSEDSC_DEVICE bool any_of_wave(bool condition) { return __ballot(condition) != 0; }
/// The same, of a value that all lanes have: the compiler does not know that it is the same.
FUSEDSC_DEVICE bool asked_again(bool condition) { return __builtin_amdgcn_readfirstlane(condition) != 0; }
#endif

template <class T>
struct Mfma {
  static constexpr int kLanes = 64, kFactors = 4, kSums = 4;
#if defined(FUSEDSC_HOST_EXECUTOR) || defined(__gfx90a__)
  static constexpr bool kFlushesSubnormals = sizeof(T) == 2;
#else
  static constexpr bool kFlushesSubnormals = false;  // AMD's own libraries work around it on gfx90a only
#endif
  using Factors = MatrixCoreFactors<T, kFactors>;
  using Sums = MfmaSums<Accumulator<T>>;

  FUSEDSC_DEVICE static int a_row(int lane) { return lane % 16; }
  FUSEDSC_DEVICE static int b_row(int lane) { return lane % 16; }
  FUSEDSC_DEVICE static int first_k(int lane) { return lane / 16 * 4; }
  FUSEDSC_DEVICE static int d_row(int lane, int i) { return sizeof(T) == 8 ? lane / 16 + 4 * i : lane / 16 * 4 + i; }

  FUSEDSC_DEVICE static void multiply_add(Sums& d, const Factors& a, const Factors& b) {
    if constexpr (sizeof(T) == 2) {
      mfma(d, a.words, b.words, T());
    } else {
      // Each instruction multiplies one value of k of each lane.
#pragma unroll
      for (int i = 0; i < kFactors; ++i) mfma(d, a.values[i], b.values[i]);
    }
  }

  /// Of one value of k of each lane, in float, which keeps subnormal numbers.
  FUSEDSC_DEVICE static void multiply_add_widened(Sums& d, float a, float b) requires(sizeof(T) == 2) { mfma(d, a, b); }
};

}  // namespace fusedsc::gpu
