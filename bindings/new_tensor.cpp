#include "new_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <optional>

namespace fusedsc::aten {
namespace {

/// What stands behind a tensor but for autograd and autocast, if that is a CPU or a GPU and nobody traces what is
/// called.
std::optional<c10::DispatchKey> plain_backend(const at::Tensor& tensor) {
  const auto key =
      (tensor.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView - c10::autocast_dispatch_keyset)
          .highestPriorityTypeId();
  const bool is_plain =
      (key == c10::DispatchKey::CPU || key == c10::DispatchKey::CUDA) && !c10::impl::dispatch_mode_enabled();
  return is_plain ? std::optional(key) : std::nullopt;
}

}  // namespace

bool is_plain(const at::Tensor& tensor) { return plain_backend(tensor).has_value(); }

at::Tensor new_tensor(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype,
                      at::MemoryFormat format) {
  const auto key = plain_backend(like);
  const auto numbers = c10::asIntArrayRefSlowOpt(sizes);
  if (!key || !numbers) return at::empty_symint(sizes, like.options().dtype(dtype).memory_format(format));
  const c10::DeviceGuard guard(like.device());
  return at::detail::empty_generic(*numbers, c10::GetAllocator(like.device().type()), c10::DispatchKeySet(*key), dtype,
                                   format);
}

at::Tensor new_like(const at::Tensor& tensor) {
  const auto key = plain_backend(tensor);
  if (!key || !tensor.is_non_overlapping_and_dense()) return at::empty_like(tensor);
  const c10::DeviceGuard guard(tensor.device());
  return at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(), c10::GetAllocator(tensor.device().type()),
                                           c10::DispatchKeySet(*key), tensor.scalar_type());
}

at::Tensor piece_of_row(const at::Tensor& matrix, std::int64_t row, const c10::SymInt& first,
                        const c10::SymInt& count) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const c10::SymInt offset = matrix.sym_storage_offset() + row * matrix.sym_size(1) + first;
  const auto offset_number = offset.maybe_as_int(), number = count.maybe_as_int();
  if (plain_backend(matrix) && offset_number && number) {
    return at::native::as_strided_tensorimpl(matrix, {*number}, {1}, *offset_number);
  }
  return matrix.select(0, row).narrow_symint(0, first, count);
}

}  // namespace fusedsc::aten
