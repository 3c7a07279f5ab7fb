/// Products of 16 x 16 matrices by the threads of a wave: D[i][j] += sum over 16 values of k of A[i][k] * B[j][k], by
/// AMD's matrix cores: Mfma<T> (matrix_cores_mfma.h), Wmma<T, generation> (matrix_cores_wmma.h). Both have these
/// members:
///
///   kLanes: threads of a wave; kFactors, kSums: a lane's elements of A (and of B), and of D;
///   kFlushesSubnormals: whether products of 16 bits take subnormal factors for 0;
///   Factors, Sums: a lane's elements of A (and of B), and of D;
///   a_row(lane), b_row(lane): which row a lane has of A, of B; first_k(lane): its first value of k, from which on it
///   has kFactors of them;
///   d_row(lane, i): the row of a lane's i-th element of D, which are all of the column b_row(lane);
///   multiply_add(d, a, b): for all threads of the wave.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"

namespace fusedsc::gpu {

/// A lane's values of k.
template <class T, int kCount>
struct MatrixCoreFactors {
  T values[kCount];
};
template <class T, int kCount>
requires(sizeof(T) == 2) struct MatrixCoreFactors<T, kCount> {
  std::uint32_t words[kCount / 2];
};

}  // namespace fusedsc::gpu

#if defined(FUSEDSC_HOST_EXECUTOR)
#include "host_executor/matrix_cores_host.h"
#endif
#if defined(FUSEDSC_HOST_EXECUTOR) || defined(FUSEDSC_MFMA)
#include "fusedsc/common/gpu/products/matrix_cores_mfma.h"
#endif
#if defined(FUSEDSC_HOST_EXECUTOR) || defined(FUSEDSC_WMMA)
#include "fusedsc/common/gpu/products/matrix_cores_wmma.h"
#endif
