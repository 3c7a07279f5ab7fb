#include "inverted_residual_operands.h"

#include <ATen/ops/empty.h>

#include <string>

#include "fusedsc/common/status.h"

namespace fusedsc::aten {
namespace {

constexpr std::array<const char*, 6> kParameterNames = {"expand_bn weight", "expand_bn bias",    "dw_bn weight",
                                                        "dw_bn bias",       "project_bn weight", "project_bn bias"};

}  // namespace

InvertedResidualGeometry inverted_residual_geometry(const Tensor& x, const OptionalTensor& expand_weight,
                                                    const Tensor& dw_weight, const Tensor& project_weight,
                                                    IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_activation("x", x);
  if (expand_weight) check_weight("expand_weight", *expand_weight, x);
  check_weight("dw_weight", dw_weight, x);
  check_weight("project_weight", project_weight, x);
  InvertedResidualGeometry geometry;
  geometry.expands = expand_weight.has_value();
  geometry.window = window_of(dw_weight, stride, padding, dilation);
  const c10::SymIntArrayRef x_sizes = x.sym_sizes();
  geometry.e = geometry.expands ? pointwise_output_sizes(x_sizes, expand_weight->sym_sizes(), 1)
                                : SymSizes{x_sizes[0], x_sizes[1], x_sizes[2], x_sizes[3]};
  geometry.d = depthwise_output_sizes(geometry.e, dw_weight.sym_sizes(), geometry.window);
  check(geometry.d[1] == geometry.e[1], "dw_weight: it makes ", geometry.d[1], " channels of ", geometry.e[1],
        "; an inverted residual's depthwise convolution keeps their number (multiplier 1)");
  geometry.y = pointwise_output_sizes(geometry.d, project_weight.sym_sizes(), 1);
  return geometry;
}

void check_batch_norm_parameters(std::size_t number, const OptionalTensor& weight, const OptionalTensor& bias,
                                 const Tensor& x, const c10::SymInt& channels) {
  check_batch_norm_vector(kParameterNames[2 * number], weight, x, channels);
  check_batch_norm_vector(kParameterNames[2 * number + 1], bias, x, channels);
}

void check_batch_norms(const TensorOptionals& bn_parameters, const Tensor& x,
                       const InvertedResidualGeometry& geometry) {
  check(bn_parameters.size() == kParameterNames.size(), "bn_parameters: ", bn_parameters.size(),
        " given; give weight and bias of expand, dw and project (None where there is none)");
  const std::array<const SymSizes*, 3> sizes = {&geometry.e, &geometry.d, &geometry.y};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    check_batch_norm_parameters(i, bn_parameters.get(2 * i), bn_parameters.get(2 * i + 1), x, (*sizes[i])[1]);
  }
}

void check_inverted_residual(const Tensor& x, const InvertedResidualGeometry& geometry,
                             const TensorOptionals& bn_parameters, const OptionalTensor& statistics,
                             at::ArrayRef<double> eps, std::string_view activation, bool residual) {
  check_batch_norms(bn_parameters, x, geometry);
  check_statistics(statistics, x, geometry.channels());
  check(eps.size() == 3, "eps: ", eps.size(), " numbers given; give one per BatchNorm (expand, dw, project)");
  for (const double value : eps) check(value >= 0, "eps: it is ", value, "; it must not be negative");
  activation_from_name(std::string(activation));
  check(!residual || x.sym_sizes() == c10::SymIntArrayRef(geometry.y), "residual: x has sizes ", x.sym_sizes(),
        " and the result ", c10::SymIntArrayRef(geometry.y), "; they must be the same to be added");
  if (!statistics) {
    if (geometry.expands) check_batch_size(geometry.e);
    check_batch_size(geometry.d);
  }
}

Tensor empty_statistics(const Tensor& x, const InvertedResidualGeometry& geometry, const OptionalTensor& statistics) {
  const auto options = x.options().dtype(accumulation_type(x.scalar_type()));
  return statistics ? at::empty({0}, options) : at::empty_symint({5, geometry.channels()}, options);
}

InvertedResidualOperands::InvertedResidualOperands(const Tensor& x_, const OptionalTensor& expand_weight_,
                                                   const Tensor& dw_weight_, const Tensor& project_weight_,
                                                   const TensorOptionals& bn_parameters_, const Tensor& statistics_,
                                                   bool are_folded)
    : x(addressable(x_)),
      expand_weight(expand_weight_ ? expand_weight_->contiguous() : Tensor()),
      dw_weight(dw_weight_.contiguous()),
      project_weight(project_weight_.contiguous()),
      statistics(statistics_.contiguous()) {
  for (std::size_t i = 0; i < bn_parameters.size() && !are_folded; ++i) {
    bn_parameters[i] = vector_of(bn_parameters_.get(i), statistics.scalar_type());
  }
}

InvertedResidualArguments InvertedResidualOperands::arguments(const Window& window, std::string_view activation,
                                                              bool residual, bool training) const {
  InvertedResidualArguments arguments;
  arguments.x = view(x);
  arguments.expand_weight = view(expand_weight);
  arguments.dw_weight = view(dw_weight);
  arguments.project_weight = view(project_weight);
  arguments.window = window;
  arguments.activation = activation_from_name(std::string(activation));
  arguments.residual = residual;
  arguments.training = training;
  arguments.allow_tf32 = convolutions_allow_tf32();
  std::int64_t first = 0;
  const auto take = [&](BatchNormParameters& bn, std::int64_t size, std::size_t i) {
    const auto row = [&](std::int64_t number) { return mutable_row(statistics, number, first, size); };
    bn.weight = channels(bn_parameters[i]);
    bn.bias = channels(bn_parameters[i + 1]);
    bn.mean = row(0);
    bn.invstd = row(1);
    if (has_all_rows(statistics)) {
      bn.variance = row(2);
      bn.scale = row(3);
      bn.shift = row(4);
    }
    first += size;
  };
  if (expand_weight.defined()) take(arguments.expand_bn, expand_weight.size(0), 0);
  take(arguments.dw_bn, dw_weight.size(0), 2);
  take(arguments.project_bn, project_weight.size(0), 4);
  return arguments;
}

InvertedResidualBackwardArguments backward_arguments(const InvertedResidualArguments& forward, const Tensor& grad_y,
                                                     const Tensor& grad_d, const Tensor& grad_e,
                                                     const ConvolutionGradients& gradients,
                                                     const std::array<Tensor, 6>& bn_gradients) {
  InvertedResidualBackwardArguments arguments;
  arguments.forward = forward;
  arguments.grad_y = view(grad_y);
  arguments.grad_d = mutable_view(grad_d);
  arguments.grad_e = mutable_view(grad_e);
  arguments.grad_x = mutable_view(gradients[0]);
  arguments.grad_expand_weight = mutable_view(gradients[1]);
  arguments.grad_dw_weight = mutable_view(gradients[2]);
  arguments.grad_project_weight = mutable_view(gradients[3]);
  arguments.grad_expand_bn = {mutable_channels(bn_gradients[0]), mutable_channels(bn_gradients[1])};
  arguments.grad_dw_bn = {mutable_channels(bn_gradients[2]), mutable_channels(bn_gradients[3])};
  arguments.grad_project_bn = {mutable_channels(bn_gradients[4]), mutable_channels(bn_gradients[5])};
  return arguments;
}

}  // namespace fusedsc::aten
