/// The inverted residual, [expand -> BN -> act ->] DW -> BN -> act -> project -> BN [+ x]: its functional core.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "arguments.h"
#include "block_layout.h"
#include "explain.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/inverted_residual.h"
#include "operators.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {
namespace {

constexpr std::array<const char*, 6> kParameterNames = {"expand_bn weight", "expand_bn bias",    "dw_bn weight",
                                                        "dw_bn bias",       "project_bn weight", "project_bn bias"};

struct Geometry {
  Window window;
  SymSizes e, d, y;
  bool expands;

  /// Channels of all the BatchNorms together, in the order of `statistics`.
  c10::SymInt channels() const { return (expands ? e[1] : c10::SymInt(0)) + d[1] + y[1]; }
};

Geometry geometry_of(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                     const Tensor& project_weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_activation("x", x);
  if (expand_weight) check_weight("expand_weight", *expand_weight, x);
  check_weight("dw_weight", dw_weight, x);
  check_weight("project_weight", project_weight, x);
  Geometry geometry;
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

void check_parameters(const TensorOptionals& parameters, const Tensor& x, const Geometry& geometry) {
  check(parameters.size() == kParameterNames.size(), "bn_parameters: ", parameters.size(),
        " given; give weight and bias of expand, dw and project (None where there is none)");
  const std::array<const SymSizes*, 3> sizes = {&geometry.e, &geometry.d, &geometry.y};
  for (std::size_t i = 0; i < kParameterNames.size(); ++i) {
    check_batch_norm_vector(kParameterNames[i], parameters.get(i), x, (*sizes[i / 2])[1]);
  }
}

Tensors5 inverted_residual_forward_meta(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                        const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                        const OptionalTensor& statistics, at::ArrayRef<double> eps,
                                        std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                        IntArrayRef dilation, bool residual, bool recompute) {
  const Geometry geometry = geometry_of(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  check_parameters(bn_parameters, x, geometry);
  check_statistics(statistics, x, geometry.channels());
  check(eps.size() == 3, "eps: ", eps.size(), " numbers given; give one per BatchNorm (expand, dw, project)");
  for (const double value : eps) check(value > 0, "eps: it is ", value, "; it must be positive");
  activation_from_name(std::string(activation));
  check(!residual || x.sym_sizes() == c10::SymIntArrayRef(geometry.y), "residual: x has sizes ", x.sym_sizes(),
        " and the result ", c10::SymIntArrayRef(geometry.y), "; they must be the same to be added");
  if (!statistics) {
    if (geometry.expands) check_batch_size(geometry.e);
    check_batch_size(geometry.d);
  }
  const auto statistics_options = x.options().dtype(accumulation_type(x.scalar_type()));
  const auto stored = [&x](const SymSizes& sizes, bool wanted) {
    return wanted ? empty_activation(sizes, x) : at::empty({0}, x.options());
  };
  return {
      empty_activation(geometry.y, x),
      statistics ? at::empty({0}, statistics_options) : at::empty_symint({5, geometry.channels()}, statistics_options),
      stored(geometry.e, geometry.expands && !recompute), stored(geometry.d, !recompute),
      stored(geometry.y, !recompute)};
}

Tensors10 inverted_residual_backward_meta(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                          const Tensor& dw_weight, const Tensor& project_weight,
                                          const TensorOptionals& bn_parameters, const Tensor& /*statistics*/,
                                          const Tensor& /*e*/, const Tensor& /*d*/, const Tensor& /*p*/,
                                          bool /*training*/, std::string_view /*activation*/, IntArrayRef stride,
                                          IntArrayRef padding, IntArrayRef dilation, bool /*residual*/,
                                          std::array<bool, 10> output_mask) {
  const Geometry geometry = geometry_of(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  check_parameters(bn_parameters, x, geometry);
  check_gradient(grad_y, geometry.y, x);
  const auto bn_gradient = [&](std::size_t i) { return empty_gradient(bn_parameters.get(i), output_mask[4 + i]); };
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(),
          empty_gradient(expand_weight, output_mask[1]),
          empty_gradient(dw_weight, output_mask[2]),
          empty_gradient(project_weight, output_mask[3]),
          bn_gradient(0),
          bn_gradient(1),
          bn_gradient(2),
          bn_gradient(3),
          bn_gradient(4),
          bn_gradient(5)};
}

/// The operands as kernels read them. The kernels' arguments are views of these.
struct Operands {
  Tensor x, expand_weight, dw_weight, project_weight, statistics;
  std::array<Tensor, 6> bn_parameters;

  Operands(const Tensor& x_, const OptionalTensor& expand_weight_, const Tensor& dw_weight_,
           const Tensor& project_weight_, const TensorOptionals& bn_parameters_, const Tensor& statistics_)
      : x(addressable(x_)),
        expand_weight(expand_weight_ ? expand_weight_->contiguous() : Tensor()),
        dw_weight(dw_weight_.contiguous()),
        project_weight(project_weight_.contiguous()),
        statistics(statistics_.contiguous()) {
    for (std::size_t i = 0; i < bn_parameters.size(); ++i) {
      bn_parameters[i] = vector_of(bn_parameters_.get(i), statistics.scalar_type());
    }
  }

  InvertedResidualArguments arguments(const Window& window, std::string_view activation, bool residual,
                                      bool training) const {
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
      if (statistics.size(0) > 2) {
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
};

InvertedResidualArguments forward_arguments(const Operands& operands, const Window& window, std::string_view activation,
                                            bool residual, bool training, at::ArrayRef<double> eps,
                                            const Tensors5& outputs) {
  auto arguments = operands.arguments(window, activation, residual, training);
  arguments.expand_bn.eps = eps[0];
  arguments.dw_bn.eps = eps[1];
  arguments.project_bn.eps = eps[2];
  arguments.e = mutable_view(std::get<2>(outputs));
  arguments.d = mutable_view(std::get<3>(outputs));
  arguments.p = mutable_view(std::get<4>(outputs));
  arguments.y = mutable_view(std::get<0>(outputs));
  return arguments;
}

/// `grad_d` and `grad_e` are scratch; the BatchNorms' gradients go to `bn_gradients`.
InvertedResidualBackwardArguments backward_arguments(const InvertedResidualArguments& forward, const Tensor& grad_y,
                                                     const Tensor& grad_d, const Tensor& grad_e,
                                                     const Tensors10& gradients,
                                                     const std::array<Tensor, 6>& bn_gradients) {
  InvertedResidualBackwardArguments arguments;
  arguments.forward = forward;
  arguments.grad_y = view(grad_y);
  arguments.grad_d = mutable_view(grad_d);
  arguments.grad_e = mutable_view(grad_e);
  arguments.grad_x = mutable_view(std::get<0>(gradients));
  arguments.grad_expand_weight = mutable_view(std::get<1>(gradients));
  arguments.grad_dw_weight = mutable_view(std::get<2>(gradients));
  arguments.grad_project_weight = mutable_view(std::get<3>(gradients));
  arguments.grad_expand_bn = {mutable_channels(bn_gradients[0]), mutable_channels(bn_gradients[1])};
  arguments.grad_dw_bn = {mutable_channels(bn_gradients[2]), mutable_channels(bn_gradients[3])};
  arguments.grad_project_bn = {mutable_channels(bn_gradients[4]), mutable_channels(bn_gradients[5])};
  return arguments;
}

Tensors5 inverted_residual_forward_kernel(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                          const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                          const OptionalTensor& statistics, at::ArrayRef<double> eps,
                                          std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                          IntArrayRef dilation, bool residual, bool recompute) {
  // In training the kernel always writes e, d and p; with `recompute` they end here. In eval mode it can do without.
  const bool keeps_raw = !statistics || !recompute;
  const auto [y, batch_statistics, e, d, p] =
      inverted_residual_forward_meta(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, eps,
                                     activation, stride, padding, dilation, residual, !keeps_raw);
  const auto kept = [&](const Tensor& tensor) { return recompute ? at::empty({0}, x.options()) : tensor; };
  const Tensors5 outputs(y, batch_statistics, kept(e), kept(d), kept(p));
  if (y.numel() == 0) return zeroed(outputs);
  const bool training = !statistics;
  const Operands operands(x, expand_weight, dw_weight, project_weight, bn_parameters,
                          training ? batch_statistics : statistics->narrow(0, 0, 2));
  const auto arguments = forward_arguments(operands, window_of(dw_weight, stride, padding, dilation), activation,
                                           residual, training, eps, {y, batch_statistics, e, d, p});
  run(plan_inverted_residual, arguments, x);
  return outputs;
}

Tensors10 inverted_residual_backward_kernel(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                            const Tensor& dw_weight, const Tensor& project_weight,
                                            const TensorOptionals& bn_parameters, const Tensor& statistics,
                                            const Tensor& e, const Tensor& d, const Tensor& p, bool training,
                                            std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                            IntArrayRef dilation, bool residual, std::array<bool, 10> output_mask) {
  const Tensors10 gradients =
      inverted_residual_backward_meta(grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, e,
                                      d, p, training, activation, stride, padding, dilation, residual, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);

  const Operands operands(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics);
  auto forward = operands.arguments(window_of(dw_weight, stride, padding, dilation), activation, residual, training);
  forward.e = mutable_view(e);
  forward.d = mutable_view(d);
  forward.p = mutable_view(p);
  const Tensor grad_y_ = addressable(grad_y), grad_d = at::empty_like(d);
  const Tensor grad_e = expand_weight ? at::empty_like(e) : Tensor();
  const auto& [g0, g1, g2, g3, w0, b0, w1, b1, w2, b2] = gradients;
  const std::array<Tensor, 6> bn_gradients = {w0, b0, w1, b1, w2, b2};
  std::array<Tensor, 6> written;
  for (std::size_t i = 0; i < written.size(); ++i) {
    written[i] = accumulator_for(bn_gradients[i], statistics.scalar_type());
  }
  run(plan_inverted_residual_backward, backward_arguments(forward, grad_y_, grad_d, grad_e, gradients, written), x);
  for (std::size_t i = 0; i < written.size(); ++i) store(written[i], bn_gradients[i]);
  return gradients;
}

Explanation explain_inverted_residual_kernel(const Tensor& given_x, const OptionalTensor& expand_weight,
                                             const TensorOptionals& expand_bn, const Tensor& dw_weight,
                                             const TensorOptionals& dw_bn, const Tensor& project_weight,
                                             const TensorOptionals& project_bn, bool training,
                                             std::optional<at::ArrayRef<double>> /*momentum*/,
                                             at::ArrayRef<double> /*eps*/, std::string_view activation,
                                             IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                             bool residual, std::optional<bool> /*recompute*/) {
  const BlockLayout layout(given_x, dw_weight, project_weight,
                           {.window = window_of(dw_weight, stride, padding, dilation),
                            .expands = expand_weight.has_value(),
                            .differentiates = training});
  const Tensor x = layout.empty_inside(given_x);
  TensorOptionals bn_parameters;
  for (const TensorOptionals& bn : {expand_bn, dw_bn, project_bn}) {
    for (const std::size_t i : {0, 1}) bn_parameters.push_back(bn.get(i));
  }
  const std::array<double, 3> eps = {1, 1, 1};  // of no consequence for the choice
  const Tensors5 outputs =
      inverted_residual_forward_meta(x, expand_weight, dw_weight, project_weight, bn_parameters, {}, eps, activation,
                                     stride, padding, dilation, residual, /*recompute=*/false);
  const auto& [y, statistics, e, d, p] = outputs;
  const bool batch_statistics = training || !dw_bn.get(2);
  const Operands operands(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics);
  const auto forward = forward_arguments(operands, window_of(dw_weight, stride, padding, dilation), activation,
                                         residual, batch_statistics, eps, outputs);
  const Tensors10 gradients(operands.x, operands.expand_weight, operands.dw_weight, operands.project_weight, {}, {}, {},
                            {}, {}, {});
  const Explanation found = explanation(
      explain_inverted_residual(forward),
      explain_inverted_residual_backward(backward_arguments(forward, y, d, e, gradients, operands.bn_parameters)));
  return layout.explained(found);
}

void register_kernels(torch::Library& m) {
  m.impl("_inverted_residual_forward", inverted_residual_forward_kernel);
  m.impl("_inverted_residual_backward", inverted_residual_backward_kernel);
  m.impl("_explain_inverted_residual", explain_inverted_residual_kernel);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("_inverted_residual_forward", inverted_residual_forward_meta);
  m.impl("_inverted_residual_backward", inverted_residual_backward_meta);
}

}  // namespace fusedsc::aten
