/// Which tiles the pointwise kernels for any GPU are taken from.
#pragma once

namespace fusedsc::gpu {

/// In the whole process, from now on; 0: of any size, whatever suits best. For tests, and for comparing kernels.
void use_pointwise_tile(int rows, int cols, int depth);

}  // namespace fusedsc::gpu
