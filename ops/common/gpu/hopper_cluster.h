/// Blocks of a Hopper GPU that run side by side as a cluster and read each other's block memory.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper.h"

namespace fusedsc::gpu::hopper {

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

}  // namespace fusedsc::gpu::hopper
