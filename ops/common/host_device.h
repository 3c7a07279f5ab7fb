/// FUSEDSC_HOST_DEVICE: a function for the host and, where a compiler for GPUs reads it, for kernels as well. Not in
/// common/gpu, which is not installed: headers that users include say it, too.
#pragma once

#if defined(__HIP__)  // as its headers say it, which need not come first
#define FUSEDSC_HOST_DEVICE __attribute__((host)) __attribute__((device)) inline __attribute__((always_inline))
#elif defined(__CUDACC__)
#define FUSEDSC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FUSEDSC_HOST_DEVICE inline
#endif
