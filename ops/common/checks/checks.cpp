#include "fusedsc/common/checks/checks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace fusedsc {
namespace {

/// Axes that hold more than one element, as {stride, size}, the smallest stride first.
std::array<std::pair<std::int64_t, std::int64_t>, 4> axes_by_stride(const ConstTensorView& view) {
  std::array<std::pair<std::int64_t, std::int64_t>, 4> axes{};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (view.sizes[axis] > 1) axes[axis] = {view.strides[axis], view.sizes[axis]};
    else axes[axis] = {0, 1};
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

/// A vector that is fused with `tensor`, that must be there.
void check_fused_vector(const char* name, const ConstChannelVector& vector, const ConstTensorView& tensor) {
  check_channels_given(name, vector, tensor.sizes[1], accumulation_type(tensor.dtype));
}

/// One that may be missing.
void check_fused_vector_if_given(const char* name, const ConstChannelVector& vector, const ConstTensorView& tensor) {
  check_channels(name, vector, tensor.sizes[1], accumulation_type(tensor.dtype));
}

}  // namespace

NamedTensor::NamedTensor(const char* name_, const ConstChannelVector& vector)
    : name(name_),
      view(vector.data, vector.dtype, {1, vector.size, 1, 1}, {vector.size, 1, vector.size, vector.size},
           vector.device) {}

void check_readable(const NamedTensor& tensor) {
  for (std::size_t axis = 0; axis < 4; ++axis) {
    check(tensor.view.sizes[axis] >= 0, tensor.name, ": its sizes are ", printed(tensor.view.sizes),
          "; none may be negative");
    check(tensor.view.strides[axis] >= 0 || tensor.view.sizes[axis] <= 1, tensor.name, ": its strides are ",
          printed(tensor.view.strides), "; none may be negative: pass a copy");
  }
}

void check_writable(const NamedTensor& tensor) {
  check_readable(tensor);
  if (tensor.view.elements() == 0) return;
  std::int64_t reach = 0;
  for (const auto& [stride, size] : axes_by_stride(tensor.view)) {
    if (size == 1) continue;
    check(stride > reach, tensor.name, ": with sizes ", printed(tensor.view.sizes), " and strides ",
          printed(tensor.view.strides),
          " its elements share memory, but it is written: pass a tensor that is not expanded and does not overlap "
          "itself");
    reach += (size - 1) * stride;
  }
}

void check_sizes(const NamedTensor& tensor, const Sizes& expected, const char* why) {
  check(tensor.view.sizes == expected, tensor.name, ": its sizes are ", printed(tensor.view.sizes), ", but must be ",
        printed(expected), ", ", why);
}

void check_dtype(const NamedTensor& tensor, DataType expected, const char* why) {
  check(tensor.view.dtype == expected, tensor.name, ": its dtype is ", name_of(tensor.view.dtype), ", but must be ",
        name_of(expected), ", ", why, ": convert it");
}

void check_device(const NamedTensor& tensor, Device expected) {
  constexpr const char* kNames[] = {"the CPU", "a GPU"};
  check(!tensor.view || tensor.view.device == expected, tensor.name, ": it is on ",
        kNames[static_cast<int>(tensor.view.device)], ", but x is on ", kNames[static_cast<int>(expected)],
        "; move one of them");
}

void check_channels(const char* name, const ConstChannelVector& vector, std::int64_t size, DataType dtype) {
  if (!vector) return;
  check(vector.size == size, name, ": it has ", vector.size, " values, but must have ", size, ", one per channel");
  check(vector.dtype == dtype, name, ": its dtype is ", name_of(vector.dtype), ", but must be ", name_of(dtype),
        ": convert it");
}

void check_channels_given(const char* name, const ConstChannelVector& vector, std::int64_t size, DataType dtype) {
  check(static_cast<bool>(vector) || size == 0, name, ": it is not given; pass ", size, " values of ", name_of(dtype),
        ", one per channel");
  check_channels(name, vector, size, dtype);
}

void check_prologue(const Prologue& prologue, const ConstTensorView& x) {
  check_fused_vector_if_given("prologue.scale", prologue.scale, x);
  check_fused_vector_if_given("prologue.shift", prologue.shift, x);
}

void check_epilogue(const Epilogue& epilogue, const ConstTensorView& y) {
  check_fused_vector_if_given("epilogue.scale", epilogue.scale, y);
  check_fused_vector_if_given("epilogue.shift", epilogue.shift, y);
  if (!epilogue.residual) return;
  const NamedTensor residual{"epilogue.residual", epilogue.residual};
  check_readable(residual);
  check_sizes(residual, y.sizes, "those of y");
  check_dtype(residual, y.dtype, "that of y");
}

void check_statistics(const Statistics& statistics, const ConstTensorView& y) {
  if (!statistics && !statistics.m2) return;
  check_fused_vector("statistics.mean", statistics.mean, y);
  check_fused_vector("statistics.m2", statistics.m2, y);
  const Normaliser& normaliser = statistics.normaliser;
  if (!normaliser) return;
  check_fused_vector_if_given("statistics.normaliser.weight", normaliser.weight, y);
  check_fused_vector_if_given("statistics.normaliser.bias", normaliser.bias, y);
  check_fused_vector_if_given("statistics.normaliser.invstd", normaliser.invstd, y);
  check_fused_vector_if_given("statistics.normaliser.variance", normaliser.variance, y);
  check_fused_vector_if_given("statistics.normaliser.scale", normaliser.scale, y);
  check_fused_vector_if_given("statistics.normaliser.shift", normaliser.shift, y);
  check(normaliser.eps >= 0, "statistics.normaliser.eps: it is ", normaliser.eps, "; it must not be negative");
}

void check_gradient_prologue(const GradientPrologue& prologue, const ConstTensorView& grad_y) {
  if (!prologue && !prologue.output_scale && !prologue.offset && !prologue.output) return;
  check_fused_vector("gradient_prologue.grad_scale", prologue.grad_scale, grad_y);
  check_fused_vector("gradient_prologue.output_scale", prologue.output_scale, grad_y);
  check_fused_vector("gradient_prologue.offset", prologue.offset, grad_y);
  const NamedTensor output{"gradient_prologue.output", prologue.output};
  check(prologue.output || grad_y.elements() == 0, output.name,
        ": it is not given; pass the raw output of the forward pass");
  if (!prologue.output) return;
  check_readable(output);
  check_sizes(output, grad_y.sizes, "those of grad_y");
  check_dtype(output, grad_y.dtype, "that of grad_y");
}

void check_gradient_sums(const GradientSums& sums, const ConstTensorView& x) {
  if (!sums && !sums.mean && !sums.grad_times_centered) return;
  check_fused_vector("sums.mean", sums.mean, x);
  check_fused_vector("sums.grad", sums.grad, x);
  check_fused_vector("sums.grad_times_centered", sums.grad_times_centered, x);
  const GradientNormaliser& normaliser = sums.normaliser;
  if (!normaliser) return;
  check_fused_vector_if_given("sums.normaliser.weight", normaliser.weight, x);
  check_fused_vector("sums.normaliser.invstd", normaliser.invstd, x);
  check_fused_vector("sums.normaliser.grad_scale", normaliser.grad_scale, x);
  check_fused_vector("sums.normaliser.output_scale", normaliser.output_scale, x);
  check_fused_vector("sums.normaliser.offset", normaliser.offset, x);
  check_fused_vector_if_given("sums.normaliser.grad_weight", normaliser.grad_weight, x);
  check_fused_vector_if_given("sums.normaliser.grad_bias", normaliser.grad_bias, x);
}

void check_given(const NamedTensor& tensor) {
  check(tensor.view || tensor.view.elements() == 0, tensor.name, ": its data is null, but its sizes are ",
        printed(tensor.view.sizes), "; pass the memory of its elements");
}

void check_no_overlap(std::initializer_list<NamedTensor> outputs, std::initializer_list<NamedTensor> inputs) {
  const auto check_pair = [](const NamedTensor& output, const NamedTensor& other) {
    check(!overlap(output.view, other.view), output.name, ": its memory overlaps that of ", other.name,
          "; pass memory of its own for ", output.name);
  };
  for (const NamedTensor* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const NamedTensor& input : inputs) check_pair(*output, input);
    for (const NamedTensor* other = outputs.begin(); other != output; ++other) check_pair(*output, *other);
  }
}

}  // namespace fusedsc
