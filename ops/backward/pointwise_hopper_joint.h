/// Pointwise convolution on Hopper GPUs, gradients where the output need not be read: what their launches share.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise_hopper_joint_image.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kMostImageChannels = 192;

/// Whether the gradient prologue's output follows from x.
inline bool output_follows(const PointwiseBackwardArguments& a) {
  return a.gradient_prologue && a.gradient_prologue.output_is_of_x && !a.prologue;
}

/// Images of `columns` channels each, with rows of `wide`, at `to`; in tiles: runs exchanged, as in block memory.
void make_joint_images(const PointwiseBackwardArguments& a, const JointImage& image, int columns, int wide,
                       bool in_tiles, unsigned char* to, void* stream);

}  // namespace fusedsc::gpu::hopper
