#include "fusedsc/fused/channels_last_copies.h"

#include <algorithm>
#include <array>

#include "fusedsc/fused/change_layout_gpu.h"

namespace fusedsc {
#ifdef FUSEDSC_GPU
namespace {

/// Positions of x up to which a block without expansion gains more than the copies of x take: contiguous kernels lose
/// most on small maps, and both ways at stride 2 (docs/performance_gpu.md, "Contiguous blocks").
constexpr std::int64_t kMostPositions = 400, kMostPositionsForward = 100;

bool is_specialised(const Window& window) {
  constexpr std::array<std::int64_t, 3> kKernels = {3, 5, 7};
  const auto& [kernel, stride, dilation, padding] = window;
  return std::ranges::find(kKernels, kernel[0]) != kKernels.end() && kernel[0] == kernel[1] && stride[0] == stride[1] &&
         stride[0] <= 2 && dilation[0] == 1 && dilation[1] == 1;
}

}  // namespace
#endif

std::string why_not_channels_last_copies(const CopiedBlock& block) {
#ifndef FUSEDSC_GPU
  static_cast<void>(block);
  return "this build has no GPU kernels";
#else
  constexpr std::int64_t kRun = 8;  // 16 bytes
  const ConstTensorView& x = block.x;
  if (x.device != Device::gpu) return "x is not on a GPU";
  if (size_of(x.dtype) != 2) return "elements are not of 16 bits";
  if (layout_of(x.sizes, x.strides) != Layout::contiguous) return "x is not contiguous";
  if (!block.is_dense) return "the second convolution has groups or windows";
  if (x.sizes[1] % kRun != 0 || block.dw_weight[0] % kRun != 0 || block.pw_weight[0] % kRun != 0)
    return "channels are no whole runs of 16 bytes";
  if (!is_specialised(block.window)) return "the window is not 3x3, 5x5 or 7x7 at stride 1 or 2";
  if (!gpu::has_channels_last_blocks()) return "the GPU is not a Hopper GPU";
  if (block.expands) return "";
  const std::int64_t positions = x.sizes[2] * x.sizes[3];
  const bool gains = block.differentiates ? block.window.stride[0] == 2 || positions <= kMostPositions
                                          : block.window.stride[0] == 1 && positions <= kMostPositionsForward;
  return gains ? "" : "copies of x would take longer than they save";
#endif
}

}  // namespace fusedsc
