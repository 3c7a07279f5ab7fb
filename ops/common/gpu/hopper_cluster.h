/// Blocks of a Hopper GPU that run side by side as a cluster and read each other's block memory.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper.h"

namespace fusedsc::gpu::hopper {

/// How many of a GPU's multiprocessors the blocks of clusters can have at once: its parts have a few each that no whole
/// cluster fits on.
constexpr int room_for_clusters(int multiprocessors) { return multiprocessors - multiprocessors / 10; }

#ifdef FUSEDSC_HOST_EXECUTOR  // whose side of it is in hopper_host.h

/// As launch_following(), in clusters of so many blocks.
template <class Parameters>
void launch_clusters(const char*, void (*kernel)(Parameters), std::int64_t blocks, int threads, void*,
                     const Parameters& parameters, std::size_t block_memory_bytes, int cluster) {
  executor::run_clusters(static_cast<unsigned>(blocks), static_cast<unsigned>(cluster), static_cast<unsigned>(threads),
                         block_memory_bytes, [&] { kernel(parameters); });
}

#else

/// Of all threads of all blocks: what was written to block memory before is there after.
FUSEDSC_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// What block number `rank` has in its memory where this block has `place`.
FUSEDSC_DEVICE Aligned<float, 4> load_of_block(const Aligned<float, 4>* place, int rank) {
  Aligned<float, 4> value;
  asm volatile(
      "{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(value.elements[0]), "=f"(value.elements[1]), "=f"(value.elements[2]), "=f"(value.elements[3])
      : "r"(address_of(place)), "r"(rank)
      : "memory");
  return value;
}
FUSEDSC_DEVICE float load_of_block(const float* place, int rank) {
  float value;
  asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}"
               : "=f"(value)
               : "r"(address_of(place)), "r"(rank)
               : "memory");
  return value;
}

/// As launch_following(), in clusters of so many blocks.
template <class Parameters>
void launch_clusters(const char* name, void (*kernel)(Parameters), std::int64_t blocks, int threads, void* stream,
                     const Parameters& parameters, std::size_t block_memory_bytes, int cluster) {
  if (blocks == 0) return;
  check_blocks(name, blocks, threads);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = block_memory_bytes;
  config.stream = static_cast<Stream>(stream);
  config.attrs = attributes;
  config.numAttrs = 2;
  allow_block_memory(kernel, block_memory_bytes);
  check_vendor(cudaLaunchKernelEx(&config, kernel, parameters), name);
}

#endif

}  // namespace fusedsc::gpu::hopper
