/// Block memory of kernels on Hopper GPUs whose warps wait for no other: each has its own stages, which the copy engine
/// fills ahead of their use, and barriers that say when one has arrived.
#pragma once

#include "fusedsc/common/gpu/hopper.h"

namespace fusedsc::gpu::hopper {

/// A warp's share.
struct WarpStages {
  unsigned char* memory;
  Barrier* barriers;
  unsigned char* rest;  ///< of the block's memory, behind all shares

  FUSEDSC_DEVICE WarpStages(int warps, int warp, int warp_bytes, int stages) {
    auto* all = static_cast<unsigned char*>(block_memory());
    all += (128 - address_of(all) % 128) % 128;
    memory = all + warp * warp_bytes;
    barriers = reinterpret_cast<Barrier*>(all + warps * warp_bytes) + warp * stages;
    rest = all + warps * (warp_bytes + stages * static_cast<int>(sizeof(Barrier)));
  }

  /// Before the first copy, by all lanes.
  FUSEDSC_DEVICE void start(bool is_leader, int stages) const {
    if (is_leader) {
      for (int i = 0; i < stages; ++i) initialise(barriers + i);
      publish();
    }
    warp_barrier();
  }

  /// Without the rest.
  FUSEDSC_HOST_DEVICE static int block_bytes(int warps, int warp_bytes, int stages) {
    return 128 + warps * (warp_bytes + stages * static_cast<int>(sizeof(Barrier)));
  }
};

}  // namespace fusedsc::gpu::hopper
