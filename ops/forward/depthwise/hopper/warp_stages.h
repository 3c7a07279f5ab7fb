/// Shared memory of kernels on Hopper GPUs whose warps wait for no other: each has its own stages, which TMA
/// fills ahead of their use, and barriers that say when one has arrived.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"

namespace fusedsc::gpu::hopper {

/// A warp's share.
struct WarpStages {
  unsigned char* memory;
  Barrier* barriers;
  unsigned char* rest;  ///< of the block's memory, behind all shares
  int count;            ///< of stages
  bool is_leader;       ///< the thread that starts the warp's copies

  FUSEDSC_DEVICE WarpStages(int warps, int warp, int warp_bytes, int stages) {
    auto* all = static_cast<unsigned char*>(shared_memory());
    all += (128 - address_of(all) % 128) % 128;
    memory = all + warp * warp_bytes;
    barriers = reinterpret_cast<Barrier*>(all + warps * warp_bytes) + warp * stages;
    rest = all + warps * (warp_bytes + stages * static_cast<int>(sizeof(Barrier)));
    count = stages;
    is_leader = thread_index() % 32 == 0;
  }

  /// Before the first copy, by all lanes.
  FUSEDSC_DEVICE void start() const {
    if (is_leader) {
      for (int i = 0; i < count; ++i) initialise(barriers + i);
      publish();
    }
    warp_barrier();
  }

  /// Items are what a cursor goes over, one to a stage. By the leader, copy(item, stage) starts the copies of one.
  /// From stage `first` on.
  template <class Cursor, class Copy>
  FUSEDSC_DEVICE void start_first(Cursor& ahead, const Copy& copy, int first = 0) const {
    for (int stage = first; stage < count; ++stage) start_next(ahead, stage, copy);
  }

  /// Calls use(item, stage) for all items from `at` on, each when its copies have arrived; `ahead` is where start_first
  /// has left it. A stage is filled again when its item, or the kLag-th after it, has been used.
  template <int kLag = 0, class Cursor, class Copy, class Use>
  FUSEDSC_DEVICE void work_off(Cursor& at, Cursor& ahead, const Copy& copy, const Use& use) const {
    int stage = 0, parity = 0, refilled = kLag == 0 ? 0 : count - kLag, used = 0;
#pragma unroll 1
    while (at.exists()) {
      wait(barriers + stage, parity);
      use(at, stage);
      warp_barrier();
      if (kLag == 0 || used >= kLag) start_next(ahead, refilled, copy);
      if (used < kLag) ++used;
      if (++refilled == count) refilled = 0;
      if (++stage == count) {
        stage = 0;
        parity ^= 1;
      }
      at.next();
    }
  }

  /// Without the rest.
  FUSEDSC_HOST_DEVICE static constexpr int block_bytes(int warps, int warp_bytes, int stages) {
    return 128 + warps * (warp_bytes + stages * static_cast<int>(sizeof(Barrier)));
  }

 private:
  template <class Cursor, class Copy>
  FUSEDSC_DEVICE void start_next(Cursor& ahead, int stage, const Copy& copy) const {
    if (!ahead.exists()) return;
    if (is_leader) copy(ahead, stage);
    ahead.next();
  }
};

}  // namespace fusedsc::gpu::hopper
