/// Products of 16 bits by the matrix cores of AMD's Radeons: v_wmma of gfx11 (RX 7000, Strix) and gfx12 (RX 9000), with
/// waves of 32 threads. The layouts are those of the RDNA3 and RDNA4 manuals:
///
///          | gfx11                              | gfx12
///   A, B   | a lane has all 16 values of k of   | a lane has 8 values of k of row lane % 16, from
///          | row lane % 16; lanes 16 apart have | 8 * (lane / 16) on
///          | the same                           |
///   D      | rows 2 * i + lane / 16             | rows 8 * (lane / 16) + i
///
/// Of gfx11 rows of A change places here, so that both have the same rows of D.
#pragma once

#include "fusedsc/common/gpu/products/matrix_cores.h"

namespace fusedsc::gpu {

#if !defined(FUSEDSC_HOST_EXECUTOR)
using WmmaSums = float __attribute__((ext_vector_type(8)));

#if FUSEDSC_WMMA == 11
FUSEDSC_DEVICE void wmma(WmmaSums& d, const std::uint32_t (&a)[8], const std::uint32_t (&b)[8], Float16) {
  using Halves = _Float16 __attribute__((ext_vector_type(16)));
  d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d);
}
FUSEDSC_DEVICE void wmma(WmmaSums& d, const std::uint32_t (&a)[8], const std::uint32_t (&b)[8], BFloat16) {
  using Halves = short __attribute__((ext_vector_type(16)));
  d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d);
}
#else
FUSEDSC_DEVICE void wmma(WmmaSums& d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[4], Float16) {
  using Halves = _Float16 __attribute__((ext_vector_type(8)));
  d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d);
}
FUSEDSC_DEVICE void wmma(WmmaSums& d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[4], BFloat16) {
  using Halves = short __attribute__((ext_vector_type(8)));
  d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b),
                                                        d);
}
#endif
#endif

/// kGeneration: 11 or 12, of gfx11 or gfx12.
template <class T, int kGeneration>
requires(sizeof(T) == 2) struct Wmma {
  static constexpr int kLanes = 32, kFactors = kGeneration == 11 ? 16 : 8, kSums = 8;
  static constexpr bool kFlushesSubnormals = false;
  using Factors = MatrixCoreFactors<T, kFactors>;
  using Sums = WmmaSums;

  FUSEDSC_DEVICE static int a_row(int lane) { return kGeneration == 11 ? lane % 2 * 8 + lane % 16 / 2 : lane % 16; }
  FUSEDSC_DEVICE static int b_row(int lane) { return lane % 16; }
  FUSEDSC_DEVICE static int first_k(int lane) { return kGeneration == 11 ? 0 : lane / 16 * 8; }
  FUSEDSC_DEVICE static int d_row(int lane, int i) { return lane / 16 * 8 + i; }

  FUSEDSC_DEVICE static void multiply_add(Sums& d, const Factors& a, const Factors& b) {
    wmma(d, a.words, b.words, T());
  }
};

}  // namespace fusedsc::gpu
