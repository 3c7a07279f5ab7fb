#include "tensor_conversion.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "fusedsc/common/status.h"

namespace fusedsc::aten {
namespace {

/// CUDA and ROCm builds of PyTorch both call their GPUs "cuda".
Device place_of(const at::Tensor& tensor) { return tensor.is_cuda() ? Device::gpu : Device::cpu; }

bool is_given(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; }

template <class View, class Pointer>
View view_of(const at::Tensor& tensor, Pointer data) {
  View view;
  view.data = data;
  view.dtype = data_type(tensor.scalar_type());
  std::copy_n(tensor.sizes().begin(), 4, view.sizes.begin());
  std::copy_n(tensor.strides().begin(), 4, view.strides.begin());
  view.device = place_of(tensor);
  return view;
}

template <class View, class Pointer>
View elements_of(const at::Tensor& tensor, Pointer data) {
  const std::int64_t count = tensor.numel();
  View view;
  view.data = data;
  view.dtype = data_type(tensor.scalar_type());
  view.sizes = {1, 1, 1, count};
  view.strides = {count, count, count, 1};
  view.device = place_of(tensor);
  return view;
}

}  // namespace

DataType data_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return DataType::float32;
    case at::kDouble: return DataType::float64;
    case at::kHalf: return DataType::float16;
    case at::kBFloat16: return DataType::bfloat16;
    default: throw InvalidArgument(std::string("dtype: ") + c10::toString(dtype) + " has no fusedsc equivalent");
  }
}

at::ScalarType accumulation_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

ConstTensorView view(const at::Tensor& tensor) {
  return is_given(tensor) ? view_of<ConstTensorView>(tensor, tensor.const_data_ptr()) : ConstTensorView{};
}

TensorView mutable_view(const at::Tensor& tensor) {
  return is_given(tensor) ? view_of<TensorView>(tensor, tensor.mutable_data_ptr()) : TensorView{};
}

ConstChannelVector channels(const at::Tensor& vector) {
  if (!is_given(vector)) return {};
  return {vector.const_data_ptr(), data_type(vector.scalar_type()), vector.numel(), place_of(vector)};
}

ChannelVector mutable_channels(const at::Tensor& vector) {
  if (!is_given(vector)) return {};
  return {vector.mutable_data_ptr(), data_type(vector.scalar_type()), vector.numel(), place_of(vector)};
}

ChannelVector mutable_row(const at::Tensor& matrix, std::int64_t row, std::int64_t first, std::int64_t count) {
  if (!is_given(matrix)) return {};
  const std::int64_t begin = (row * matrix.size(1) + first) * static_cast<std::int64_t>(matrix.element_size());
  return {static_cast<char*>(matrix.mutable_data_ptr()) + begin, data_type(matrix.scalar_type()), count,
          place_of(matrix)};
}

TensorView mutable_matrix(const at::Tensor& matrix) {
  TensorView view = mutable_elements(matrix);
  if (view) view.sizes = {1, 1, matrix.size(0), matrix.size(1)}, view.strides[2] = matrix.size(1);
  return view;
}

ConstTensorView elements(const at::Tensor& tensor) {
  return is_given(tensor) ? elements_of<ConstTensorView>(tensor, tensor.const_data_ptr()) : ConstTensorView{};
}

TensorView mutable_elements(const at::Tensor& tensor) {
  return is_given(tensor) ? elements_of<TensorView>(tensor, tensor.mutable_data_ptr()) : TensorView{};
}

at::Tensor addressable(const at::Tensor& tensor) {
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.stride(axis) == 0 && tensor.size(axis) > 1) return tensor.contiguous(tensor.suggest_memory_format());
  }
  return tensor;
}

at::Tensor vector_of(const std::optional<at::Tensor>& parameter, at::ScalarType dtype) {
  if (!parameter) return {};
  // Asked first: an operator that has nothing to do takes its time on the host, too.
  return (parameter->scalar_type() == dtype ? *parameter : parameter->to(dtype)).contiguous();
}

at::Tensor accumulator_for(const at::Tensor& gradient, at::ScalarType dtype) {
  return gradient.defined() && gradient.scalar_type() != dtype ? gradient.to(dtype) : gradient;
}

void store(const at::Tensor& accumulator, const at::Tensor& gradient) {
  if (gradient.defined() && !accumulator.is_same(gradient)) gradient.copy_(accumulator);
}

bool convolutions_allow_tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV) ==
         at::Float32Precision::TF32;
}

Execution execution_on(c10::Device device) {
  Execution execution;
  if (device.is_cuda()) {
    // By way of the guard that PyTorch registers for its GPUs, so that one library serves CPU, CUDA and ROCm builds.
    execution.stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
    return execution;
  }
  execution.threads = at::get_num_threads();
  execution.parallel_for = [](std::int64_t lanes, const std::function<void(std::int64_t)>& body) {
    at::parallel_for(0, lanes, 1, [&body](std::int64_t begin, std::int64_t end) {
      for (std::int64_t lane = begin; lane < end; ++lane) body(lane);
    });
  };
  return execution;
}

c10::DataPtr workspace_on(c10::Device device, std::size_t bytes) {
  return bytes > 0 ? c10::GetAllocator(device.type())->allocate(bytes) : c10::DataPtr();
}

}  // namespace fusedsc::aten
