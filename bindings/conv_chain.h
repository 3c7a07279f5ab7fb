/// Chains of convolutions as C++ programs with libtorch call them (operators.h has all other operators).
#pragma once

#include <string>

#include "operators.h"

namespace fusedsc::aten {

using BoolList = c10::List<bool>;
using StringList = c10::List<std::string>;

/// Each list has an element for each convolution; `bns` five, strides and dilations two, paddings four (left, right,
/// top, bottom). A momentum that is NaN is the cumulative average.
Tensor conv_chain(const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
                  const TensorOptionals& bns, bool training, at::ArrayRef<double> momenta, at::ArrayRef<double> eps,
                  const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                  IntArrayRef groups, bool residual = false, const OptionalTensor& branch_scale = {},
                  std::string_view input_activation = "identity", std::optional<bool> recompute = {});

// What it is made of.

std::tuple<Tensor, Tensor, std::vector<Tensor>> conv_chain_forward(
    const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
    const TensorOptionals& bn_parameters, const OptionalTensor& statistics, at::ArrayRef<double> eps,
    const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
    bool residual, const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute);

std::vector<Tensor> conv_chain_backward(const Tensor& grad_y, const Tensor& x, at::TensorList weights,
                                        const TensorOptionals& biases, const BoolList& has_bn,
                                        const TensorOptionals& bn_parameters, const Tensor& statistics,
                                        at::TensorList raw, bool training, const StringList& activations,
                                        IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                                        IntArrayRef groups, bool residual, const OptionalTensor& branch_scale,
                                        std::string_view input_activation, const BoolList& output_mask);

}  // namespace fusedsc::aten
