#include "reference/dsc_block.h"

#include "reference/convolution.h"

namespace fusedsc::reference {

namespace {

/// Where the second convolution's filters begin to read.
FirstChannels first_channels(const DscBlock& block) {
  const std::int64_t outputs = block.pw_weight.sizes[0], channels = block.dw_weight.sizes[0];
  if (block.overlap) return channel_map(channels, outputs, block.groups, *block.overlap).first;
  return first_of_groups(outputs, channels / block.groups, block.groups);
}

}  // namespace

DscBlockOutputs forward(const DscBlock& block, const Normalisation& by, bool stores_d) {
  const Precision precision(block.dtype);
  DscBlockOutputs outputs;
  outputs.d = depthwise(precision, block.x, block.dw_weight, block.dw_bias, block.window);
  Normalisation normalisation = by;
  if (block.training) {
    outputs.statistics = batch_statistics(precision, outputs.d, block.eps);
    normalisation = {outputs.statistics.mean, outputs.statistics.invstd};
  }
  const Affine map = batch_norm(precision, block.bn_weight, block.bn_bias, normalisation, block.activation);
  const Array d = stores_d ? stored(precision, outputs.d) : outputs.d;
  outputs.y =
      channel_windows(precision, apply(precision, d, map), block.pw_weight, block.pw_bias, first_channels(block));
  return outputs;
}

DscBlockGradients backward(const DscBlock& block, const Normalisation& by, const Array* stored_d, bool rounds_d,
                           const Array& grad_y, bool stores_grad_bn) {
  const Precision precision(block.dtype);
  Array d;
  if (stored_d != nullptr) {
    d = *stored_d;
  } else {
    d = depthwise(precision, block.x, block.dw_weight, block.dw_bias, block.window);
    if (rounds_d) d = stored(precision, d);
  }
  const Affine map = batch_norm(precision, block.bn_weight, block.bn_bias, by, block.activation);
  DscBlockGradients gradients;
  const FirstChannels first = first_channels(block);
  gradients.pw_weight =
      channel_windows_weight_gradient(precision, grad_y, apply(precision, d, map), block.pw_weight.sizes, first);
  gradients.pw_bias = channel_sums(precision, grad_y);

  const Array grad_a = channel_windows_input_gradient(precision, grad_y, block.pw_weight, d.sizes, first);
  Array grad_bn = apply_backward(precision, grad_a, d, map);
  if (stores_grad_bn) grad_bn = stored(precision, grad_bn);
  const Sums sums = gradient_sums(precision, grad_bn, d, by.mean);
  const BatchNormGradients batch_norm =
      batch_norm_backward(precision, block.bn_weight, by, sums, d.elements_per_channel(), block.training);
  gradients.bn_weight = batch_norm.weight;
  gradients.bn_bias = batch_norm.bias;

  const Array grad_d = apply(precision, grad_bn, d, batch_norm.input);
  gradients.dw_bias = channel_sums(precision, grad_d);
  gradients.dw_weight = depthwise_weight_gradient(precision, grad_d, block.x, block.window, block.dw_weight.sizes);
  gradients.x = depthwise_input_gradient(precision, grad_d, block.dw_weight, block.window, block.x.sizes);
  return gradients;
}

}  // namespace fusedsc::reference
