/// Blocks of a Hopper GPU that run side by side as a cluster and read each other's shared memory.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

/// How many of a GPU's multiprocessors the blocks of clusters can have at once: its parts have a few each that no whole
/// cluster fits on.
constexpr int room_for_clusters(int multiprocessors) { return multiprocessors - multiprocessors / 10; }

/// Blocks of a cluster that all of these GPUs can run.
inline constexpr int kMostCluster = 8;

#ifdef FUSEDSC_HOST_EXECUTOR  // whose side of it is in hopper_host.h

/// As launch_following(), in clusters of so many blocks.
template <class Parameters>
void launch_clusters(const char*, void (*kernel)(Parameters), std::int64_t blocks, int threads, void*,
                     const Parameters& parameters, std::size_t shared_memory_bytes, int cluster) {
  executor::run_clusters(static_cast<unsigned>(blocks), static_cast<unsigned>(cluster), static_cast<unsigned>(threads),
                         shared_memory_bytes, [&] { kernel(parameters); });
}

/// Clusters of so many blocks of `kernel` that the current device runs at the same time.
template <class Parameters>
int resident_clusters(void (*kernel)(Parameters), int threads, std::size_t shared_memory_bytes, int cluster) {
  return resident_blocks(kernel, threads, shared_memory_bytes) / cluster;
}

#else

/// Of all threads of all blocks: what was written to shared memory before is there after.
FUSEDSC_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Of all threads, before they end: no block's memory goes while another one reads it. Others need not see what was
/// written, so that nothing waits for stores that are under way.
FUSEDSC_DEVICE void leave_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
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

inline cudaLaunchAttribute cluster_attribute(int cluster) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

/// Clusters of so many blocks of `kernel` that the current device runs at the same time.
template <class Parameters>
int resident_clusters(void (*kernel)(Parameters), int threads, std::size_t shared_memory_bytes, int cluster) {
  constexpr std::size_t kSizes = 32;  // more than there are: each is a question of its own
  return remembered(reinterpret_cast<const void*>(kernel), current_device(),
                    shared_memory_bytes * kSizes + static_cast<std::size_t>(cluster), [&] {
                      allow_shared_memory(kernel, shared_memory_bytes);
                      cudaLaunchAttribute attribute = cluster_attribute(cluster);
                      cudaLaunchConfig_t config = {};
                      config.gridDim = dim3(static_cast<unsigned>(cluster));
                      config.blockDim = dim3(static_cast<unsigned>(threads));
                      config.dynamicSmemBytes = shared_memory_bytes;
                      config.attrs = &attribute;
                      config.numAttrs = 1;
                      int clusters = 0;
                      check_vendor(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
                                   "gpu: asking how many clusters fit it");
                      return clusters;
                    });
}

/// As launch_following(), in clusters of so many blocks.
template <class Parameters>
void launch_clusters(const char* name, void (*kernel)(Parameters), std::int64_t blocks, int threads, void* stream,
                     const Parameters& parameters, std::size_t shared_memory_bytes, int cluster) {
  if (blocks == 0) return;
  check_blocks(name, blocks, threads);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1] = cluster_attribute(cluster);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_memory_bytes;
  config.stream = static_cast<Stream>(stream);
  config.attrs = attributes;
  config.numAttrs = 2;
  allow_shared_memory(kernel, shared_memory_bytes);
  check_vendor(cudaLaunchKernelEx(&config, kernel, parameters), name);
}

#endif

/// Of fours that blocks of a cluster have at the same place, their sum, always in the same order; so many are on their
/// way at once.
template <int kAtOnce = 4>
FUSEDSC_DEVICE Aligned<float, 4> sum_of_blocks(const Aligned<float, 4>* place, int cluster) {
  Aligned<float, 4> sum = {};
#pragma unroll 1
  for (int first = 0; first < cluster; first += kAtOnce) {
    Aligned<float, 4> fours[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      fours[i] = {};
      if (first + i < cluster) fours[i] = load_of_block(place, first + i);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.elements[j] += fours[i].elements[j];
    }
  }
  return sum;
}

}  // namespace fusedsc::gpu::hopper
