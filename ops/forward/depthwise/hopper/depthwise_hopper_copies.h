/// How the thread that brings tiles of depthwise kernels on Hopper GPUs begins and goes on. Little is left to do for
/// the first tile when the kernel before has ended, and nobody is waited for.
///
/// announce(cursor, slot) notes the tile that is next for the warps that compute, and moves on; start_copies(note,
/// slot) brings it.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

/// stored: of the two buffers that tiles leave from.
template <class Parameters>
FUSEDSC_DEVICE void initialise_barriers(const Parameters& p, Barrier* arrived, Barrier* done, Barrier* stored) {
  initialise_stages(p, arrived, done);
  initialise(stored);
  initialise(stored + 1);
  publish();
}

template <class Cursor, class Announce, class StartCopies>
FUSEDSC_DEVICE void bring_first_tile(Cursor& ahead, const Announce& announce, const StartCopies& start_copies) {
  const auto first = announce(ahead, 0);
  wait_for_previous_kernel();
  start_copies(first, 0);
}

/// All behind the first.
template <class Cursor, class Announce, class StartCopies>
FUSEDSC_DEVICE void bring_other_tiles(Cursor& ahead, int stages, Barrier* done, const Announce& announce,
                                      const StartCopies& start_copies) {
  StageTurn turn{0, 1};
  turn.next(stages);
#pragma unroll 1
  while (ahead.exists) {
    wait(done + turn.slot, turn.parity);
    start_copies(announce(ahead, turn.slot), turn.slot);
    turn.next(stages);
  }
}

}  // namespace fusedsc::gpu::hopper
