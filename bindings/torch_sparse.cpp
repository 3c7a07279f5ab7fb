/// Convolution that skips the zeros of x, for inference: kernels for PyTorch's dispatcher, the fake ones that
/// torch.compile asks for sizes, and in place of a gradient the sentence that there is none.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "explain.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/sparse.h"
#include "new_tensor.h"
#include "operators.h"
#include "sparse_arguments.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// What both public operators are: without pooling each window is one value.
Tensor sparse_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                   IntArrayRef pool_size, IntArrayRef pool_stride, const OptionalTensor& packed) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  const c10::SymIntArrayRef x_sizes = x.sym_sizes();
  const SymSizes sizes = sparse_output_sizes_of({x_sizes[0], x_sizes[1], x_sizes[2], x_sizes[3]}, weight,
                                                window_of(weight, stride, padding, dilation), groups,
                                                sparse_pooling_of(pool_size, pool_stride));
  check_bias("bias", bias, x, sizes[1]);
  activation_from_name(std::string(activation));
  check_packed_weight(packed, x, weight, groups);
  return empty_activation(sizes, x);
}

SparseArguments arguments_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Window& window,
                             std::int64_t groups, std::string_view activation, const MaxPooling& pooling,
                             const Tensor& packed, std::string_view config, const Tensor& y) {
  SparseArguments arguments = sparse_arguments(weight, bias, window, groups, activation, pooling, packed, config);
  arguments.x = view(x);
  arguments.y = mutable_view(y);
  return arguments;
}

Tensor sparse_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                     IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                     IntArrayRef pool_size, IntArrayRef pool_stride, const OptionalTensor& packed,
                     std::string_view config) {
  const Tensor y =
      sparse_meta(x, weight, bias, stride, padding, dilation, groups, activation, pool_size, pool_stride, packed);
  if (y.numel() == 0) return y;
  const Tensor x_ = addressable(x), bias_ = vector_of(bias, x.scalar_type());
  // Of a packed weight nothing but the sizes is read.
  const Tensor packed_ = packed ? packed->contiguous() : Tensor(), weight_ = packed ? weight : weight.contiguous();
  run(plan_sparse_conv2d,
      arguments_of(x_, weight_, bias_, window_of(weight, stride, padding, dilation), groups, activation,
                   sparse_pooling_of(pool_size, pool_stride), packed_, config, y),
      x);
  return y;
}

Explanation explain_sparse(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                           IntArrayRef pool_size, IntArrayRef pool_stride, const OptionalTensor& packed,
                           std::string_view config) {
  const Tensor y =
      sparse_meta(x, weight, bias, stride, padding, dilation, groups, activation, pool_size, pool_stride, packed);
  return explanation(explain_sparse_conv2d(arguments_of(
                         x, weight, bias.value_or(Tensor()), window_of(weight, stride, padding, dilation), groups,
                         activation, sparse_pooling_of(pool_size, pool_stride), packed.value_or(Tensor()), config, y)),
                     {});
}

/// Of arguments that the operator has been called with.
std::vector<std::string> sparse_configs(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                        std::int64_t groups, std::string_view activation, IntArrayRef pool_size,
                                        IntArrayRef pool_stride, const OptionalTensor& packed, std::int64_t most) {
  check(most > 0, "most: it is ", most, "; it must be at least 1");
  const Tensor y =
      sparse_meta(x, weight, bias, stride, padding, dilation, groups, activation, pool_size, pool_stride, packed);
  const c10::DeviceGuard guard(x.device());
  const Tensor x_ = addressable(x), bias_ = vector_of(bias, x.scalar_type());
  return sparse_conv2d_configs(
      arguments_of(x_, weight, bias_, window_of(weight, stride, padding, dilation), groups, activation,
                   sparse_pooling_of(pool_size, pool_stride), packed.value_or(Tensor()), "", y),
      execution_on(x.device()).threads, static_cast<std::size_t>(most));
}

constexpr std::int64_t kOne[] = {1};

/// Whether there is such a kernel and config says who plans the call: once for each problem.
Tensor ecr_conv2d_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                       const OptionalTensor& packed, std::string_view /*config*/) {
  return sparse_meta(x, weight, bias, stride, padding, dilation, groups, activation, kOne, kOne, packed);
}

Tensor ecr_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                         IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                         const OptionalTensor& packed, std::string_view config) {
  return sparse_kernel(x, weight, bias, stride, padding, dilation, groups, activation, kOne, kOne, packed, config);
}

Tensor pecr_conv2d_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                        IntArrayRef padding, IntArrayRef pool_size, IntArrayRef pool_stride, IntArrayRef dilation,
                        std::int64_t groups, const OptionalTensor& packed, std::string_view /*config*/) {
  return sparse_meta(x, weight, bias, stride, padding, dilation, groups, "relu", pool_size, pool_stride, packed);
}

Tensor pecr_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                          IntArrayRef padding, IntArrayRef pool_size, IntArrayRef pool_stride, IntArrayRef dilation,
                          std::int64_t groups, const OptionalTensor& packed, std::string_view config) {
  return sparse_kernel(x, weight, bias, stride, padding, dilation, groups, "relu", pool_size, pool_stride, packed,
                       config);
}

Explanation explain_ecr_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                      IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                      std::int64_t groups, std::string_view activation, const OptionalTensor& packed,
                                      std::string_view config) {
  return explain_sparse(x, weight, bias, stride, padding, dilation, groups, activation, kOne, kOne, packed, config);
}

Explanation explain_pecr_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                       IntArrayRef stride, IntArrayRef padding, IntArrayRef pool_size,
                                       IntArrayRef pool_stride, IntArrayRef dilation, std::int64_t groups,
                                       const OptionalTensor& packed, std::string_view config) {
  return explain_sparse(x, weight, bias, stride, padding, dilation, groups, "relu", pool_size, pool_stride, packed,
                        config);
}

Tensor pack_sparse_weight_meta(const Tensor& weight, std::int64_t groups) {
  check_activation("weight", weight);
  check(groups > 0 && weight.sym_size(0) % groups == 0, "groups: it is ", groups, ", which must divide the ",
        weight.sym_size(0), " output channels of weight");
  return new_tensor({packed_weight_size(weight, groups)}, weight, accumulation_type(weight.scalar_type()));
}

Tensor pack_sparse_weight_kernel(const Tensor& weight, std::int64_t groups) {
  const Tensor packed = pack_sparse_weight_meta(weight, groups);
  const Tensor weight_ = weight.contiguous();
  const c10::DeviceGuard guard(weight.device());
  if (packed.numel() > 0) {
    pack_sparse_weight({view(weight_), groups, mutable_channels(packed)}, execution_on(weight.device()));
  }
  return packed;
}

Tensor ecr_conv2d_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                           const OptionalTensor& packed, std::string_view config) {
  refuse_gradient("ecr_conv2d", "torch.nn.functional.conv2d", x, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return ecr_conv2d(x, weight, bias, stride, padding, dilation, groups, activation, packed, config);
}

Tensor pecr_conv2d_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef pool_size, IntArrayRef pool_stride, IntArrayRef dilation,
                            std::int64_t groups, const OptionalTensor& packed, std::string_view config) {
  refuse_gradient("pecr_conv2d", "torch.nn.functional.conv2d, relu and max_pool2d", x, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return pecr_conv2d(x, weight, bias, stride, padding, pool_size, pool_stride, dilation, groups, packed, config);
}

Tensor pack_sparse_weight_autograd(const Tensor& weight, std::int64_t groups) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return pack_sparse_weight(weight.detach(), groups);
}

void register_kernels(torch::Library& m) {
  m.impl("ecr_conv2d", translated<ecr_conv2d_kernel>);
  m.impl("pecr_conv2d", translated<pecr_conv2d_kernel>);
  m.impl("_pack_sparse_weight", translated<pack_sparse_weight_kernel>);
  m.impl("_sparse_configs", translated<sparse_configs>);
  m.impl("_explain_ecr_conv2d", translated<explain_ecr_conv2d_kernel>);
  m.impl("_explain_pecr_conv2d", translated<explain_pecr_conv2d_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("ecr_conv2d", translated<ecr_conv2d_meta>);
  m.impl("pecr_conv2d", translated<pecr_conv2d_meta>);
  m.impl("_pack_sparse_weight", translated<pack_sparse_weight_meta>);
}

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("ecr_conv2d", translated<ecr_conv2d_autograd>);
  m.impl("pecr_conv2d", translated<pecr_conv2d_autograd>);
  m.impl("_pack_sparse_weight", translated<pack_sparse_weight_autograd>);
}

}  // namespace fusedsc::aten
