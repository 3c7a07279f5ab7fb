#include "fusedsc/fused/block_layout.h"

#include <algorithm>
#include <array>

#include "fusedsc/fused/layout/change_layout_gpu.h"

namespace fusedsc {
namespace {

// Limits from what the two layouts were measured to take (docs/log/performance_gpu.md, "Contiguous blocks", and
// docs/log/performance.md).

/// Positions of x up to which contiguous kernels lose more than copies of x take; more, in both directions, at
/// stride 2.
constexpr std::int64_t kSmallMap = 400, kSmallMapForward = 100;
/// Elements of x from which a launch more is nothing.
constexpr std::int64_t kManyElements = std::int64_t{1} << 20;
/// Positions of x up to which, on a CPU, converting rows of 16 bits loses more than copies of x take.
constexpr std::int64_t kSmallMapCpu = 3136;
/// Likewise of float32, in both directions.
constexpr std::int64_t kSmallMapCpuFloat = 784;
/// Elements of x from which starting copies takes nothing that counts.
constexpr std::int64_t kManyElementsCpu = std::int64_t{1} << 15;

struct Question {
  const BlockShape& block;
  const ConstTensorView& x = block.x;
  std::int64_t positions = x.sizes[2] * x.sizes[3];
  bool is_half = size_of(x.dtype) == 2;
  std::int64_t run = 16 / static_cast<std::int64_t>(size_of(x.dtype));  ///< channels that are 16 bytes

  bool has_stride(std::int64_t stride) const {
    return block.window.stride[0] == stride && block.window.stride[1] == stride;
  }
  bool is_dilated() const { return block.window.dilation[0] > 1 || block.window.dilation[1] > 1; }

  /// Runs of 16 bytes of channels, everywhere.
  bool has_runs() const {
    return x.sizes[1] % run == 0 && block.dw_weight[0] % run == 0 && block.pw_weight[0] % run == 0;
  }

  /// There are kernels for such windows of channels_last tensors.
  bool is_specialised() const {
    constexpr std::array<std::int64_t, 3> kKernels = {3, 5, 7};
    const auto& kernel = block.window.kernel;
    return std::ranges::find(kKernels, kernel[0]) != kKernels.end() && kernel[0] == kernel[1] && !is_dilated() &&
           (has_stride(1) || has_stride(2));
  }

  bool is_better_channels_last_on_cpu() const {
    if (size_of(x.dtype) > 4 || !block.is_dense || !is_specialised()) return false;
    if (x.elements() < kManyElementsCpu) return false;
    if (block.expands) return true;
    return is_half ? positions <= kSmallMapCpu : block.differentiates && positions <= kSmallMapCpuFloat;
  }

  bool is_better_channels_last_on_gpu() const {
    if (!is_half || !block.is_dense || !has_runs() || !is_specialised()) return false;
    if (block.expands) return true;
    return block.differentiates ? has_stride(2) || positions <= kSmallMap
                                : has_stride(1) && positions <= kSmallMapForward;
  }

  /// Windows and numbers of channels that rows of positions do not mind.
  bool is_better_contiguous_on_gpu() const {
    if (size_of(x.dtype) > 4 || block.expands || !block.is_dense || !has_stride(1)) return false;
    if (positions <= kSmallMap || x.elements() < kManyElements) return false;
    return (is_half || block.differentiates) && (is_dilated() || x.sizes[1] % run != 0);
  }
};

#ifdef FUSEDSC_GPU
std::optional<Layout> layout_worth_copies_on_gpu(const Question& question, Layout layout) {
  if (!gpu::has_kernels_by_layout()) return std::nullopt;
  if (layout == Layout::contiguous && question.is_better_channels_last_on_gpu()) return Layout::channels_last;
  if (layout == Layout::channels_last && question.positions > 1 && question.is_better_contiguous_on_gpu()) {
    return Layout::contiguous;
  }
  return std::nullopt;
}
#endif

}  // namespace

std::optional<Layout> layout_worth_copies(const BlockShape& block) {
  const Question question{block};
  const Layout layout = layout_of(block.x.sizes, block.x.strides);
#ifdef FUSEDSC_GPU
  if (block.x.device == Device::gpu) return layout_worth_copies_on_gpu(question, layout);
#endif
  if (layout == Layout::contiguous && question.is_better_channels_last_on_cpu()) return Layout::channels_last;
  return std::nullopt;
}

}  // namespace fusedsc
