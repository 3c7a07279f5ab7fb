/// Stages of tiles in shared memory of kernels on Hopper GPUs, which TMA fills ahead of their use: where
/// they begin, how one goes round them, and what is done to all of them before the first copy.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"

namespace fusedsc::gpu::hopper {

/// From the beginning of shared memory to where TMA puts tiles whose runs it swizzles: a multiple of 1024
/// bytes. So kernels ask for 1024 bytes more than they use.
FUSEDSC_DEVICE unsigned padding_before_tiles(const void* memory) { return (1024 - address_of(memory) % 1024) % 1024; }

/// Whose turn it is, as one goes round the stages.
struct StageTurn {
  int slot = 0;
  int parity = 0;  ///< of the phase of its barrier that is to be waited for

  FUSEDSC_DEVICE void next(int stages) {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// By one thread, barriers of all stages of a kernel with such parameters. arrived: its copies have come; done: all
/// warps have arrived there that compute.
template <class Parameters>
FUSEDSC_DEVICE void initialise_stages(const Parameters& p, Barrier* arrived, Barrier* done) {
  for (int i = 0; i < p.stages; ++i) {
    initialise(arrived + i);
    initialise(done + i, p.warps());
  }
}

/// By a warp that has read a stage.
FUSEDSC_DEVICE void arrive_as_warp(Barrier* done) {
  warp_barrier();
  if (thread_index() % 32 == 0) arrive(done);
}

/// By all of so many threads: zeros from byte `begin` to byte `end` of each stage, where copies put nothing and threads
/// read beyond the edge of a tile.
FUSEDSC_DEVICE void clear_behind_copies(unsigned char* memory, int stages, int stage_bytes, int begin, int end,
                                        int threads) {
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
#pragma unroll 1
    for (int i = begin + thread_index() * 16; i < end; i += threads * 16) {
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(memory + stage * stage_bytes + i) = {};
    }
  }
}

}  // namespace fusedsc::gpu::hopper
