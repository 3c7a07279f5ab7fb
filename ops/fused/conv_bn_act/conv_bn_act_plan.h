/// How conv_bn_act is cut into tiles on a GPU with products of matrices by waves. Pure functions.
#pragma once

#include <string>

#include "fusedsc/fused/conv_bn_act.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_patches.h"

namespace fusedsc::gpu {

/// What forward and backward have in common: the output is y, or grad_y.
struct ConvProblem {
  ConstTensorView x, weight, output;
  Window window;
  bool allow_tf32 = false;

  int word_elements() const { return static_cast<int>(4 / size_of(x.dtype)); }
};

/// Words that a lane has of a patch, and of a 1 behind it: 2, 4 or 6, of float32 8; more, if there is no kernel for it.
int patch_words(const ConvProblem& problem);

/// Empty if the kernels can run the problem, else the reason why not.
std::string why_not_patches(const ConvProblem& problem);

/// What the kernels know of it: words from position to position of images of three channels at stride 2, or 0.
int known_step(const ConvProblem& problem);

/// For tiles of so many rows of the output, and warps that compute so many of its channels.
ConvShape conv_shape(const ConvProblem& problem, int tile_rows, int group_channels);

/// Where the elements of a word find their factors in a filter whose elements have these strides:
/// PatchWords::elements.
void place_factors(const ConvProblem& problem, const Sizes& weight_strides, std::int32_t* elements);

/// Shared memory of a forward kernel with so many tiles on their way.
std::size_t conv_forward_bytes(const ConvShape& shape, int stages, int group_channels);

/// Likewise of the backward kernel, whose stages have gradients, too: sets shape.stage_words and the rest of what
/// ConvBackwardParameters has.
struct ConvBackwardMemory {
  int grad_runs, grad_pitch, grad_begin;
  std::size_t bytes;
};
ConvBackwardMemory conv_backward_memory(const ConvProblem& problem, ConvShape& shape, int stages);

/// Elements of a patch that the backward kernel keeps sums of.
inline int patch_taps(const ConvProblem& problem) { return 4 * problem.word_elements() * patch_words(problem); }

}  // namespace fusedsc::gpu
