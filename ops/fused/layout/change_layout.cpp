#include "fusedsc/fused/change_layout.h"

#include <limits>

#include "fusedsc/common/status.h"
#include "fusedsc/fused/layout/change_layout_cpu.h"
#include "fusedsc/fused/layout/change_layout_gpu.h"

namespace fusedsc {
namespace {

/// Of each image; images may lie apart.
bool has_layout(const Sizes& sizes, const Sizes& strides, Layout layout) {
  const Sizes dense = dense_strides(sizes, layout);
  for (const std::size_t axis : {1, 2, 3}) {
    if (sizes[axis] > 1 && strides[axis] != dense[axis]) return false;
  }
  return true;
}

}  // namespace

std::string why_not_change_layout(const ChangeLayoutArguments& arguments) {
  const ConstTensorView& from = arguments.from;
  const TensorView& to = arguments.to;
  if (from.device != to.device) return "the tensors are on two devices";
#ifndef FUSEDSC_GPU
  if (from.device == Device::gpu) return "this build has no GPU kernels";
#endif
  if (from.dtype != to.dtype) return "the tensors are of two types";
  if (from.sizes != to.sizes) return "the tensors have different sizes";
  const auto are = [&](Layout from_layout, Layout to_layout) {
    return has_layout(from.sizes, from.strides, from_layout) && has_layout(to.sizes, to.strides, to_layout);
  };
  if (!are(Layout::contiguous, Layout::channels_last) && !are(Layout::channels_last, Layout::contiguous))
    return "the tensors are not one contiguous and one channels_last";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t image = from.sizes[1] * from.sizes[2] * from.sizes[3];
  return from.device == Device::cpu || image <= kMost ? "" : "an image is too large";
}

void change_layout(const ChangeLayoutArguments& arguments, const Execution& execution) {
  const std::string reason = why_not_change_layout(arguments);
  if (!reason.empty()) throw Unsupported("change_layout: " + reason);
  if (arguments.from.elements() == 0) return;
  if (arguments.from.device == Device::cpu) return cpu::change_layout(arguments, execution);
#ifdef FUSEDSC_GPU
  gpu::change_layout(arguments, execution.stream);
#endif
}

}  // namespace fusedsc
