/// From at::Tensor to fusedsc's views, and what an operator may use while it runs: PyTorch's threads or stream, and its
/// allocator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/plan.h"
#include "plan_cache.h"

namespace fusedsc::aten {

/// Throws InvalidArgument, naming it, where there is no such type here.
DataType data_type(at::ScalarType dtype);

/// float64 for float64, float32 for everything else: the type of statistics and of BatchNorm's arithmetic.
at::ScalarType accumulation_type(at::ScalarType dtype);

/// Views of four-dimensional tensors; of an undefined or empty one, "not given".
ConstTensorView view(const at::Tensor& tensor);
TensorView mutable_view(const at::Tensor& tensor);

/// Views of contiguous vectors; of an undefined or empty one, "not given".
ConstChannelVector channels(const at::Tensor& vector);
ChannelVector mutable_channels(const at::Tensor& vector);
/// `count` values of a row of a contiguous matrix, from `first` on. Kernels of a block want fifteen such pieces of its
/// statistics: as PyTorch's views they would take longer than a launch.
ChannelVector mutable_row(const at::Tensor& matrix, std::int64_t row, std::int64_t first, std::int64_t count);
inline ChannelVector mutable_row(const at::Tensor& matrix, std::int64_t row) {
  return mutable_row(matrix, row, 0, matrix.size(1));
}
/// A contiguous matrix as [1, 1, rows, columns].
TensorView mutable_matrix(const at::Tensor& matrix);
/// All elements of a tensor without gaps, in the order in which they lie.
ConstTensorView elements(const at::Tensor& tensor);
TensorView mutable_elements(const at::Tensor& tensor);

/// The tensor itself, or, where broadcasting made several elements share memory (as in y.sum().backward()), a copy
/// in which they do not: the operators take any strides that address each element once.
at::Tensor addressable(const at::Tensor& tensor);

/// A parameter as kernels read it: contiguous, and of `dtype`. Undefined where there is none.
at::Tensor vector_of(const std::optional<at::Tensor>& parameter, at::ScalarType dtype);

/// Of statistics as the operators' schemas have them: whether the affine map is among their rows.
inline bool has_all_rows(const at::Tensor& statistics) { return statistics.size(0) >= 5; }
/// Whether they are given and say all of a BatchNorm, so that forward need not look at its parameters.
inline bool are_folded(const std::optional<at::Tensor>& statistics) { return statistics && has_all_rows(*statistics); }

/// Where a kernel that computes in `dtype` writes a BatchNorm parameter's gradient: the gradient itself if it has that
/// type, else a tensor that does. Undefined where there is no gradient.
at::Tensor accumulator_for(const at::Tensor& gradient, at::ScalarType dtype);
/// Converts what was written there into the gradient.
void store(const at::Tensor& accumulator, const at::Tensor& gradient);

/// PyTorch's own switch for convolutions on GPUs, torch.backends.cudnn.conv.fp32_precision or
/// torch.backends.cudnn.allow_tf32: whether products of float32 may be TensorFloat-32.
bool convolutions_allow_tf32();

/// PyTorch's threads on a CPU, its current stream on a GPU.
Execution execution_on(c10::Device device);
/// Memory from PyTorch's allocator for the current device of that type. On a GPU it may be freed as soon as the work
/// that uses it is in the stream.
c10::DataPtr workspace_on(c10::Device device, std::size_t bytes);

/// Runs an operator on the device of `x`, with a workspace from its allocator. What is called again with the same
/// problem runs the plan that was made the first time. Nothing is asked of the memory: results are new tensors, which
/// overlap nothing.
template <class Arguments>
void run(Plan<Arguments> (*plan_operator)(const Arguments&, int threads), const Arguments& arguments,
         const at::Tensor& x) {
  const c10::DeviceGuard guard(x.device());
  Execution execution = execution_on(x.device());
  const auto plan = plan_cache<Arguments>().plan(plan_operator, arguments, execution.threads, x.device().index());
  const c10::DataPtr workspace = workspace_on(x.device(), plan->workspace_bytes);
  execution.workspace = workspace.get();
  execution.workspace_bytes = plan->workspace_bytes;
  plan->unchecked_run(arguments, execution);
}

}  // namespace fusedsc::aten
