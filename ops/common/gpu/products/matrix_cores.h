/// Products of 16 x 16 matrices by the 64 threads of a wave: D[i][j] += sum over 16 values of k of A[i][k] * B[j][k],
/// by AMD's matrix cores (the instructions v_mfma of gfx90a and later; the layouts are those of the CDNA2 manual).
///
/// Of A and B, lane l has row l % 16, and of that the values of k from 4 * (l / 16) on, four of them. Of D it has four
/// elements of column l % 16: which rows, matrix_core_row() says.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"

namespace fusedsc::gpu {

/// Threads of a wave that has matrix cores.
inline constexpr int kMatrixCoreLanes = 64;

/// A lane's four values of k.
template <class T>
struct MatrixCoreFactors {
  T values[4];
};
template <class T>
requires(sizeof(T) == 2) struct MatrixCoreFactors<T> {
  std::uint32_t words[2];
};

/// Of a lane's i-th element of D.
template <class T>
FUSEDSC_DEVICE int matrix_core_row(int lane, int i) {
  return sizeof(T) == 8 ? lane / 16 + 4 * i : lane / 16 * 4 + i;
}

}  // namespace fusedsc::gpu

#if defined(FUSEDSC_HOST_EXECUTOR)
#include "host_executor/matrix_cores_host.h"
#elif defined(FUSEDSC_MATRIX_CORES)

namespace fusedsc::gpu {

template <class T, int kSize>
using MatrixCoreVector = T __attribute__((ext_vector_type(kSize)));

/// A lane's elements of D: a vector, of which the compiler knows that its registers are neighbours.
template <class A>
using MatrixCoreSums = MatrixCoreVector<A, 4>;

FUSEDSC_DEVICE void matrix_core_step(MatrixCoreSums<float>& d, const std::uint32_t (&a)[2], const std::uint32_t (&b)[2],
                                     Float16) {
  using Halves = MatrixCoreVector<_Float16, 4>;
  d = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d, 0, 0, 0);
}
FUSEDSC_DEVICE void matrix_core_step(MatrixCoreSums<float>& d, const std::uint32_t (&a)[2], const std::uint32_t (&b)[2],
                                     BFloat16) {
  using Halves = MatrixCoreVector<short, 4>;
  d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), d, 0, 0,
                                                0);
}
FUSEDSC_DEVICE void matrix_core_step(MatrixCoreSums<float>& d, float a, float b) {
  d = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, d, 0, 0, 0);
}
FUSEDSC_DEVICE void matrix_core_step(MatrixCoreSums<double>& d, double a, double b) {
  d = __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, d, 0, 0, 0);
}

FUSEDSC_DEVICE bool any_of_wave(bool condition) { return __any(condition) != 0; }

}  // namespace fusedsc::gpu
#endif

namespace fusedsc::gpu {

#if defined(FUSEDSC_HOST_EXECUTOR) || defined(FUSEDSC_MATRIX_CORES)
template <class T>
FUSEDSC_DEVICE void matrix_core_multiply_add(MatrixCoreSums<Accumulator<T>>& d, const MatrixCoreFactors<T>& a,
                                             const MatrixCoreFactors<T>& b) {
  if constexpr (sizeof(T) == 2) {
    matrix_core_step(d, a.words, b.words, T());
  } else {
    // Each instruction multiplies one value of k of each lane.
#pragma unroll
    for (int i = 0; i < 4; ++i) matrix_core_step(d, a.values[i], b.values[i]);
  }
}
#endif

}  // namespace fusedsc::gpu
