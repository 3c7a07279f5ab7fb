#include "joined_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy.h>

#include "fusedsc/fused/cast.h"
#include "new_tensor.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {
namespace {

thread_local bool shares_allocations = false;

bool is_cast_on_gpu(const CastArguments& arguments, c10::Device device) {
  if (!device.is_cuda()) return false;
  if (arguments.runs.empty()) return true;
  if (!why_not_cast(arguments).empty()) return false;
  fusedsc::cast(arguments, execution_on(device));
  return true;
}

}  // namespace

SharedAllocations::SharedAllocations() : before_(shares_allocations) { shares_allocations = true; }
SharedAllocations::~SharedAllocations() { shares_allocations = before_; }

std::vector<at::Tensor> joined_like(at::TensorList tensors) {
  std::vector<at::Tensor> results(tensors.size());
  std::vector<std::int64_t> firsts(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (results[i].defined()) continue;
    const at::ScalarType dtype = tensors[i].scalar_type();
    const auto joins = [&](const at::Tensor& other) {
      return shares_allocations && other.scalar_type() == dtype && other.is_non_overlapping_and_dense();
    };
    if (!joins(tensors[i])) {
      results[i] = new_like(tensors[i]);
      continue;
    }
    JoinedPlaces places(dtype);
    for (std::size_t j = i; j < tensors.size(); ++j) {
      if (joins(tensors[j])) firsts[j] = places.add(tensors[j].sym_numel().guard_int(__FILE__, __LINE__));
    }
    const at::Tensor joined = new_tensor({places.elements()}, tensors[i], dtype);
    for (std::size_t j = i; j < tensors.size(); ++j) {
      if (joins(tensors[j])) results[j] = joined_tensor(joined, firsts[j], tensors[j]);
    }
  }
  return results;
}

at::Tensor joined_tensor(const at::Tensor& joined, std::int64_t first, const at::Tensor& like) {
  const c10::SymInt begin = joined.sym_storage_offset() + first;
  if (!is_plain(joined)) return joined.as_strided_symint(like.sym_sizes(), like.sym_strides(), begin);
  return at::native::as_strided_tensorimpl(joined, like.sizes(), like.strides(), begin.expect_int());
}

TensorView joined_view(const at::Tensor& joined, std::int64_t first, const ConstTensorView& like) {
  if (!like) return {};
  char* const data = static_cast<char*>(joined.mutable_data_ptr());
  return {data + first * static_cast<std::int64_t>(joined.element_size()), data_type(joined.scalar_type()), like.sizes,
          like.strides, like.device};
}

void cast_into(const at::Tensor& joined, const std::vector<JoinedPiece>& pieces) {
  CastArguments arguments;
  for (const JoinedPiece& piece : pieces) {
    const ConstTensorView from = elements(piece.tensor);
    if (from) arguments.runs.emplace_back(from, joined_view(joined, piece.first, from));
  }
  if (is_cast_on_gpu(arguments, joined.device())) return;
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const auto& [tensor, first] : pieces) joined_tensor(joined, first, tensor).copy_(tensor);
}

void cast_out_of(const at::Tensor& joined, const std::vector<JoinedPiece>& pieces) {
  CastArguments arguments;
  for (const JoinedPiece& piece : pieces) {
    const TensorView to = mutable_elements(piece.tensor);
    if (to) arguments.runs.emplace_back(joined_view(joined, piece.first, to), to);
  }
  if (is_cast_on_gpu(arguments, joined.device())) return;
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const auto& [tensor, first] : pieces) tensor.copy_(joined_tensor(joined, first, tensor));
}

}  // namespace fusedsc::aten
