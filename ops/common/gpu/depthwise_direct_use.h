/// Which depthwise problems have threads with an output or a few each (depthwise_direct.h).
#pragma once

namespace fusedsc::gpu {

enum class DirectUse { where_it_suits, never, wherever_it_can };

/// In the whole process, from now on; only with so many channels (of channels_last tensors) and rows to a thread, or
/// with what suits best where that is 0. For tests, and for comparing kernels.
void use_depthwise_direct(DirectUse use, int channels = 0, int rows = 0);

}  // namespace fusedsc::gpu
