#include "channels_last_copies.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "fusedsc/fused/channels_last_copies.h"

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

}  // namespace

bool is_by_channels_last_copies(const at::Tensor& x, const at::Tensor& dw_weight, const at::Tensor& pw_weight,
                                const BlockTraits& traits) {
  const bool is_half = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  if (!x.is_cuda() || !is_half || !at::globalContext().hasCUDA()) return false;
  if (!x.is_contiguous() || x.is_contiguous(at::MemoryFormat::ChannelsLast)) return false;
  const auto x_sizes = sizes_of(x), dw_sizes = sizes_of(dw_weight), pw_sizes = sizes_of(pw_weight);
  if (!x_sizes || !dw_sizes || !pw_sizes) return false;
  const DataType dtype = x.scalar_type() == at::kHalf ? DataType::float16 : DataType::bfloat16;
  const c10::DeviceGuard guard(x.device());
  return why_not_channels_last_copies(
             {.x = {nullptr, dtype, *x_sizes, dense_strides(*x_sizes, Layout::contiguous), Device::gpu},
              .dw_weight = *dw_sizes,
              .pw_weight = *pw_sizes,
              .window = traits.window,
              .is_dense = traits.is_dense,
              .expands = traits.expands,
              .differentiates = traits.differentiates})
      .empty();
}

Explanation of_channels_last_copies(Explanation explanation) {
  for (std::string& implementation : std::get<1>(explanation)) {
    implementation.insert(0, "channels_last copies, ");
  }
  return explanation;
}

}  // namespace fusedsc::aten
