#include <algorithm>

#include "fusedsc/common/gpu/vendor/launch.h"
#include "fusedsc/fused/layout/conv_patches_gpu.h"
#include "fusedsc/fused/layout/conv_patches_kernel.h"

namespace fusedsc::gpu {
namespace {

template <class T>
FUSEDSC_KERNEL(kPatchThreads, 1)
gather_kernel(ConvPatchesParameters parameters) {
  gather_patches<T>(parameters);
}

template <class T>
FUSEDSC_KERNEL(kPatchThreads, 1)
scatter_kernel(ConvPatchesParameters parameters) {
  scatter_patches<T>(parameters);
}

template <class T>
FUSEDSC_KERNEL(kPatchThreads, 1)
gradient_kernel(BatchNormGradientParameters parameters) {
  batch_norm_gradient<T>(parameters);
}

Divisor divisor(std::int64_t number) { return Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(number, 1))); }

/// Sets the grid over the elements of `tensor`; returns how many blocks work through it.
std::int64_t set_grid(const char* name, const TensorView& tensor, ElementGrid& grid) {
  constexpr std::int64_t kMost = 1 << 30;
  const Sizes& sizes = tensor.sizes;
  const std::int64_t elements = sizes[1] * sizes[2] * sizes[3];
  if (elements > kMost) {
    throw Unsupported(std::string(name) + ": an image has " + std::to_string(elements) +
                      " elements; the GPU kernels take at most " + std::to_string(kMost));
  }
  const std::int64_t blocks = (elements + kPatchThreads - 1) / kPatchThreads;
  grid.channels_last = tensor.strides[1] < tensor.strides[3];
  grid.image_blocks = divisor(blocks);
  grid.inner = divisor(grid.channels_last ? sizes[1] : sizes[3]);
  grid.middle = divisor(grid.channels_last ? sizes[3] : sizes[2]);
  grid.image_elements = static_cast<std::uint32_t>(elements);
  return sizes[0] * blocks;
}

ConvPatchesParameters parameters_of(const ConstTensorView& from, const TensorView& to, std::int64_t channels,
                                    const Window& window, PatchOrder order) {
  ConvPatchesParameters p;
  p.from = from;
  p.to = to;
  p.channels_last = order == PatchOrder::channels_last;
  p.by_inner = divisor(p.channels_last ? channels : window.kernel[1]);
  p.by_middle = divisor(p.channels_last ? window.kernel[1] : window.kernel[0]);
  p.channels = static_cast<int>(channels);
  p.kernel_height = static_cast<int>(window.kernel[0]);
  p.kernel_width = static_cast<int>(window.kernel[1]);
  p.stride_height = static_cast<int>(window.stride[0]);
  p.stride_width = static_cast<int>(window.stride[1]);
  p.dilation_height = static_cast<int>(window.dilation[0]);
  p.dilation_width = static_cast<int>(window.dilation[1]);
  p.padding_top = static_cast<int>(window.padding.top);
  p.padding_left = static_cast<int>(window.padding.left);
  p.height = static_cast<int>(from.sizes[2]);
  p.width = static_cast<int>(from.sizes[3]);
  return p;
}

/// Kernels for the types in the order of DataType.
template <class Parameters>
using Kernel = void (*)(Parameters);

template <class Parameters>
void run(const char* name, DataType dtype, Kernel<Parameters> float32, Kernel<Parameters> float64,
         Kernel<Parameters> float16, Kernel<Parameters> bfloat16, std::int64_t blocks, void* stream,
         const Parameters& parameters) {
  const Kernel<Parameters> kernel = dtype == DataType::float32   ? float32
                                    : dtype == DataType::float64 ? float64
                                    : dtype == DataType::float16 ? float16
                                                                 : bfloat16;
  launch(name, kernel, blocks, kPatchThreads, 0, stream, parameters);
}

}  // namespace

void gather_patches(const GatherPatchesArguments& a, void* stream) {
  ConvPatchesParameters p = parameters_of(a.x, a.patches, a.x.sizes[1], a.window, a.order);
  const std::int64_t blocks = set_grid("gather_patches", a.patches, p.grid);
  run("gather_patches", a.x.dtype, gather_kernel<float>, gather_kernel<double>, gather_kernel<Float16>,
      gather_kernel<BFloat16>, blocks, stream, p);
}

void scatter_patches(const ScatterPatchesArguments& a, void* stream) {
  ConvPatchesParameters p = parameters_of(a.patches, a.x, a.x.sizes[1], a.window, a.order);
  const std::int64_t blocks = set_grid("scatter_patches", a.x, p.grid);
  run("scatter_patches", a.x.dtype, scatter_kernel<float>, scatter_kernel<double>, scatter_kernel<Float16>,
      scatter_kernel<BFloat16>, blocks, stream, p);
}

void batch_norm_gradient(const BatchNormGradientArguments& a, void* stream) {
  BatchNormGradientParameters p;
  p.x = a.x;
  p.grad_y = a.grad_y;
  p.out = a.out;
  p.scale = a.scale.data;
  p.shift = a.shift.data;
  p.grad_scale = a.grad_scale.data;
  p.output_scale = a.output_scale.data;
  p.offset = a.offset.data;
  p.activation = a.activation;
  const std::int64_t blocks = set_grid("batch_norm_gradient", a.out, p.grid);
  run("batch_norm_gradient", a.x.dtype, gradient_kernel<float>, gradient_kernel<double>, gradient_kernel<Float16>,
      gradient_kernel<BFloat16>, blocks, stream, p);
}

}  // namespace fusedsc::gpu
