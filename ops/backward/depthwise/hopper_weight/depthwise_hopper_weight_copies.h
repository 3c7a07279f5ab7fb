/// How the warp that copies goes over the tiles of a block of depthwise weight gradients on Hopper GPUs; alike for
/// tiles and patches.
#pragma once

#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_sum.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_copies.h"

namespace fusedsc::gpu::hopper {

/// By all threads of the warp; one copies. p: with the maps x and grad_y.
template <class Cursor, class Parameters, class Announce, class StartCopies>
FUSEDSC_DEVICE void copy_weight_tiles(const Parameters& p, int split, Barrier* arrived, Barrier* done,
                                      const Announce& announce, const StartCopies& start_copies) {
  const int lane = thread_index() % 32;
  if (lane < 2) prefetch(lane == 0 ? p.x : p.grad_y);
  Cursor ahead(p, split);
  if (lane == 0) {
    initialise_stages(p, arrived, done);
    publish();
    bring_first_tile(ahead, announce, start_copies);
  }
  warp_barrier();
  if (p.goes_on) arrive_at_group_barrier(0, threads_of_block(p));
  else group_barrier(0, threads_of_block(p));
  if (lane == 0) bring_other_tiles(ahead, p.stages, done, announce, start_copies);
}

}  // namespace fusedsc::gpu::hopper
