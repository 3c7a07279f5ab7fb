/// Tensors for what operators write, and pieces of them. A block makes twenty small ones in a training step; made by
/// way of PyTorch's dispatcher they take longer on the host than working out the step. Where anything but a CPU or a
/// GPU stands behind a tensor (a fake tensor, a graph that is traced), they are made by PyTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

namespace fusedsc::aten {

/// Whether a CPU or a GPU stands behind a tensor, but for autograd and autocast, and nobody traces what is called: then
/// its memory may be used without PyTorch's operators.
bool is_plain(const at::Tensor& tensor);

/// Uninitialised, on the device of `like`; its strides as the memory format says.
at::Tensor new_tensor(c10::SymIntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype,
                      at::MemoryFormat format = at::MemoryFormat::Contiguous);

/// Uninitialised, with dtype and strides of `tensor`; dense, if these are not.
at::Tensor new_like(const at::Tensor& tensor);

/// Elements `first` to `first + count` of a row of a dense matrix, to be read by what knows nothing of views: autograd
/// is not told whose memory it is.
at::Tensor piece_of_row(const at::Tensor& matrix, std::int64_t row, const c10::SymInt& first, const c10::SymInt& count);

}  // namespace fusedsc::aten
