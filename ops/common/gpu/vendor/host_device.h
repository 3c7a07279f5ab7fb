/// FUSEDSC_HOST_DEVICE, as the compilers of the vendors write it, and as others do: see common/host_device.h.
#pragma once

#if defined(__HIP__)  // as its headers say it, which need not come first
#define FUSEDSC_HOST_DEVICE __attribute__((host)) __attribute__((device)) inline __attribute__((always_inline))
#elif defined(__CUDACC__)
#define FUSEDSC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FUSEDSC_HOST_DEVICE inline
#endif
