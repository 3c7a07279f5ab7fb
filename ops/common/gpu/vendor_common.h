/// Device code that CUDA and HIP write alike. Included by vendor_cuda.h and vendor_hip.h, behind the vendor's own
/// headers.
#pragma once

#include <cstdint>

#define FUSEDSC_DEVICE __device__ __forceinline__
#define FUSEDSC_HOST_DEVICE __host__ __device__ __forceinline__

namespace fusedsc::gpu {

FUSEDSC_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FUSEDSC_DEVICE unsigned block_index() { return blockIdx.x; }
FUSEDSC_DEVICE unsigned block_count() { return gridDim.x; }
FUSEDSC_DEVICE void block_barrier() { __syncthreads(); }

FUSEDSC_DEVICE void* block_memory() {
  extern __shared__ __align__(16) unsigned char fusedsc_block_memory[];
  return fusedsc_block_memory;
}

FUSEDSC_HOST_DEVICE std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(a) * b) >> 32);
}

}  // namespace fusedsc::gpu
