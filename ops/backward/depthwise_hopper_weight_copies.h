/// How the warp that copies goes over the tiles of a block of depthwise weight gradients on Hopper GPUs; alike for
/// tiles and patches.
#pragma once

#include "fusedsc/common/gpu/depthwise_hopper_tiles.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// By all threads of the warp; one copies. Little is left to do for the first tile when the kernel before has ended,
/// and nobody is waited for. announce(cursor, slot) notes the tile that is next for the warps that compute, and moves
/// on; start_copies(note, slot) brings it. p: with the maps x and grad_y.
template <class Cursor, class Parameters, class Announce, class StartCopies>
FUSEDSC_DEVICE void copy_weight_tiles(const Parameters& p, int split, Barrier* arrived, Barrier* done,
                                      const Announce& announce, const StartCopies& start_copies) {
  const int lane = thread_index() % 32;
  if (lane < 2) prefetch(lane == 0 ? p.x : p.grad_y);
  Cursor ahead(p, split);
  if (lane == 0) {
    initialise_stages(p, arrived, done);
    publish();
    const DepthwiseTileNote first = announce(ahead, 0);
    wait_for_previous_kernel();
    start_copies(first, 0);
  }
  warp_barrier();
  block_barrier();
  if (lane != 0) return;
  StageTurn turn{0, 1};
  turn.next(p.stages);
#pragma unroll 1
  while (ahead.exists) {
    wait(done + turn.slot, turn.parity);
    start_copies(announce(ahead, turn.slot), turn.slot);
    turn.next(p.stages);
  }
}

}  // namespace fusedsc::gpu::hopper
