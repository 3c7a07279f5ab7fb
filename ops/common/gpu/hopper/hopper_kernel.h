/// The kernel of all classes whose run() a block calls on Hopper GPUs.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"

namespace fusedsc::gpu::hopper {

/// kThreads: the most that a block may have; kBlocks: that shall fit a multiprocessor then. Parameters: of run(), which
/// the type of the pointer says that takes the kernel.
template <class Block, int kThreads = Block::kThreads, int kBlocks = 1, class Parameters>
FUSEDSC_KERNEL(kThreads, kBlocks)
hopper_kernel(const FUSEDSC_GRID_CONSTANT Parameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Block::run(p);
#endif
}

}  // namespace fusedsc::gpu::hopper
