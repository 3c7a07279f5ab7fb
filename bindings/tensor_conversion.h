/// From at::Tensor to fusedsc's views, and what an operator may use while it runs: PyTorch's threads and allocator.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc::aten {

/// float64 for float64, float32 for everything else: the type of statistics and of BatchNorm's arithmetic.
at::ScalarType accumulation_type(at::ScalarType dtype);

/// Views of four-dimensional tensors; of an undefined or empty one, "not given".
ConstTensorView view(const at::Tensor& tensor);
TensorView mutable_view(const at::Tensor& tensor);

/// Views of contiguous vectors; of an undefined or empty one, "not given".
ConstChannelVector channels(const at::Tensor& vector);
ChannelVector mutable_channels(const at::Tensor& vector);

/// The tensor itself, or, where broadcasting made several elements share memory (as in y.sum().backward()), a copy
/// in which they do not: the operators take any strides that address each element once.
at::Tensor addressable(const at::Tensor& tensor);

/// A parameter as kernels read it: contiguous, and of `dtype`. Undefined where there is none.
at::Tensor vector_of(const std::optional<at::Tensor>& parameter, at::ScalarType dtype);

/// Where a kernel that computes in `dtype` writes a BatchNorm parameter's gradient: the gradient itself if it has that
/// type, else a tensor that does. Undefined where there is no gradient.
at::Tensor accumulator_for(const at::Tensor& gradient, at::ScalarType dtype);
/// Converts what was written there into the gradient.
void store(const at::Tensor& accumulator, const at::Tensor& gradient);

/// Turns biased variances of `count` values into unbiased ones, as running statistics want them.
void to_unbiased(const at::Tensor& variance, std::int64_t count);

/// Runs `op` on PyTorch's thread pool, with a workspace from the allocator of `like`'s device.
template <class Arguments>
void run(void (*op)(const Arguments&, const Execution&), std::size_t (*workspace_bytes)(const Arguments&, int),
         const Arguments& arguments, const at::Tensor& like) {
  Execution execution;
  execution.threads = at::get_num_threads();
  execution.parallel_for = [](std::int64_t lanes, const std::function<void(std::int64_t)>& body) {
    at::parallel_for(0, lanes, 1, [&body](std::int64_t begin, std::int64_t end) {
      for (std::int64_t lane = begin; lane < end; ++lane) body(lane);
    });
  };
  execution.workspace_bytes = workspace_bytes(arguments, execution.threads);
  const at::Tensor workspace =
      at::empty({static_cast<std::int64_t>(execution.workspace_bytes)}, like.options().dtype(at::kByte));
  execution.workspace = workspace.mutable_data_ptr();
  op(arguments, execution);
}

}  // namespace fusedsc::aten
