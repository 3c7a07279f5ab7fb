/// What the inverted residual's kernels make of their arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "arguments.h"
#include "fusedsc/fused/gated_residual.h"
#include "operators.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {

/// The sizes of everything in the block.
struct InvertedResidualGeometry {
  Window window;
  SymSizes e, d, y;
  bool expands;

  /// Channels of all the BatchNorms together, in the order of `statistics`.
  c10::SymInt channels() const { return (expands ? e[1] : c10::SymInt(0)) + d[1] + y[1]; }
};

/// Throws InvalidArgument where the convolutions do not fit.
InvertedResidualGeometry inverted_residual_geometry(const Tensor& x, const OptionalTensor& expand_weight,
                                                    const Tensor& dw_weight, const Tensor& project_weight,
                                                    IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation);

/// Of one of the three BatchNorms (expand, dw, project), where there are any.
void check_batch_norm_parameters(std::size_t number, const OptionalTensor& weight, const OptionalTensor& bias,
                                 const Tensor& x, const c10::SymInt& channels);
/// `bn_parameters` must be weight and bias of the three BatchNorms.
void check_batch_norms(const TensorOptionals& bn_parameters, const Tensor& x, const InvertedResidualGeometry& geometry);
/// What forward asks for besides.
void check_inverted_residual(const Tensor& x, const InvertedResidualGeometry& geometry,
                             const TensorOptionals& bn_parameters, const OptionalTensor& statistics,
                             at::ArrayRef<double> eps, std::string_view activation, bool residual);
/// Where forward leaves the batch's statistics; empty where statistics are given.
Tensor empty_statistics(const Tensor& x, const InvertedResidualGeometry& geometry, const OptionalTensor& statistics);

/// The operands as kernels read them. The kernels' arguments are views of these. Without `bn_parameters` where the
/// statistics are folded.
struct InvertedResidualOperands {
  Tensor x, expand_weight, dw_weight, project_weight, statistics;
  std::array<Tensor, 6> bn_parameters;

  InvertedResidualOperands(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                           const Tensor& project_weight, const TensorOptionals& bn_parameters, const Tensor& statistics,
                           bool are_folded = false);

  InvertedResidualArguments arguments(const Window& window, std::string_view activation, bool residual,
                                      bool training) const;
};

/// Of x, expand_weight, dw_weight and project_weight.
using ConvolutionGradients = std::array<Tensor, 4>;

/// `grad_d` and `grad_e` are scratch; the BatchNorms' gradients go to `bn_gradients`.
InvertedResidualBackwardArguments backward_arguments(const InvertedResidualArguments& forward, const Tensor& grad_y,
                                                     const Tensor& grad_d, const Tensor& grad_e,
                                                     const ConvolutionGradients& gradients,
                                                     const std::array<Tensor, 6>& bn_gradients);

}  // namespace fusedsc::aten
