#include "block_layout.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include "arguments.h"
#include "fusedsc/fused/block_layout.h"
#include "operators.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {
namespace {

/// Nothing where one is symbolic.
std::optional<Sizes> sizes_of(const at::Tensor& tensor) {
  Sizes sizes;
  if (tensor.dim() != 4) return std::nullopt;
  for (std::int64_t axis = 0; axis < 4; ++axis) {
    const auto size = tensor.sym_size(axis).maybe_as_int();
    if (!size) return std::nullopt;
    sizes[static_cast<std::size_t>(axis)] = *size;
  }
  return sizes;
}

/// Of a tensor that is dense in one of the two, and not in both.
std::optional<Layout> layout_of(const at::Tensor& x) {
  const bool contiguous = x.is_contiguous(), channels_last = x.is_contiguous(at::MemoryFormat::ChannelsLast);
  if (contiguous == channels_last) return std::nullopt;
  return contiguous ? Layout::contiguous : Layout::channels_last;
}

}  // namespace

BlockLayout::BlockLayout(const at::Tensor& x, const at::Tensor& dw_weight, const at::Tensor& pw_weight,
                         const BlockTraits& traits) {
  if (x.is_cuda() ? !at::globalContext().hasCUDA() : !x.is_cpu()) return;
  const auto layout = layout_of(x);
  const auto x_sizes = sizes_of(x), dw_sizes = sizes_of(dw_weight), pw_sizes = sizes_of(pw_weight);
  if (!layout || !x_sizes || !dw_sizes || !pw_sizes) return;
  const c10::DeviceGuard guard(x.device());
  const auto better =
      layout_worth_copies({.x = {nullptr, data_type(x.scalar_type()), *x_sizes, dense_strides(*x_sizes, *layout),
                                 x.is_cuda() ? Device::gpu : Device::cpu},
                           .dw_weight = *dw_sizes,
                           .pw_weight = *pw_sizes,
                           .window = traits.window,
                           .is_dense = traits.is_dense,
                           .expands = traits.expands,
                           .differentiates = traits.differentiates});
  if (better) channels_last_ = *better == Layout::channels_last;
}

at::Tensor BlockLayout::inside(const at::Tensor& x) const {
  return channels_last_ ? change_layout(x, *channels_last_) : x;
}

at::Tensor BlockLayout::outside(const at::Tensor& y) const {
  return channels_last_ ? change_layout(y, !*channels_last_) : y;
}

at::Tensor BlockLayout::empty_inside(const at::Tensor& x) const {
  return channels_last_ ? at::empty_like(x, memory_format_of(*channels_last_)) : x;
}

Explanation BlockLayout::explained(Explanation explanation) const {
  if (!channels_last_) return explanation;
  for (std::string& implementation : std::get<1>(explanation)) {
    implementation.insert(0, *channels_last_ ? "channels_last copies, " : "contiguous copies, ");
  }
  return explanation;
}

}  // namespace fusedsc::aten
