#include "reference/conv_bn_act.h"

#include "reference/convolution.h"

namespace fusedsc::reference {
namespace {

/// Calls body(patch element, the element of x that it is) for every element of a patch that lies inside of x.
template <class Body>
void for_each_patch_element(const Window& window, const Sizes& x, const Sizes& patches, const Body& body) {
  for_each_index(patches, [&](auto n, auto k, auto oh, auto ow) {
    const std::int64_t columns = window.kernel[1], taps = window.kernel[0] * columns, tap = k % taps;
    const std::int64_t h = oh * window.stride[0] + tap / columns * window.dilation[0] - window.padding.top;
    const std::int64_t w = ow * window.stride[1] + tap % columns * window.dilation[1] - window.padding.left;
    if (h >= 0 && h < x[2] && w >= 0 && w < x[3]) body(Sizes{n, k, oh, ow}, Sizes{n, k / taps, h, w});
  });
}

Bounded& at(Array& array, const Sizes& index) { return array.at(index[0], index[1], index[2], index[3]); }
const Bounded& at(const Array& array, const Sizes& index) { return array.at(index[0], index[1], index[2], index[3]); }

Array patches_of(const ConvBnAct& block) {
  const Sizes& x = block.x.sizes;
  Array patches({x[0], x[1] * block.window.kernel[0] * block.window.kernel[1], block.window.output_height(x[2]),
                 block.window.output_width(x[3])});
  for_each_patch_element(block.window, x, patches.sizes,
                         [&](const Sizes& to, const Sizes& from) { at(patches, to) = at(block.x, from); });
  return patches;
}

/// Tensor cores cut off what they add, where others round.
Precision precision_of(const ConvBnAct& block) {
  Precision precision(block.dtype);
  if (block.tf32) precision.accumulation *= 2;
  return precision;
}

/// What is multiplied.
Array factors(const ConvBnAct& block, const Array& gradients) {
  if (!block.tf32) return gradients;
  return map(gradients, [](const Bounded& element, std::size_t) -> Bounded {
    return {element.value, element.error + 0x1p-11 * element.magnitude()};
  });
}

Array as_matrix(Array weight) {
  weight.sizes = {weight.sizes[0], weight.sizes[1] * weight.sizes[2] * weight.sizes[3], 1, 1};
  return weight;
}

}  // namespace

ConvBnActOutputs forward(const ConvBnAct& block, const Normalisation& by) {
  const Precision precision = precision_of(block);
  const Array raw = pointwise(precision, patches_of(block), as_matrix(block.weight), {});
  ConvBnActOutputs outputs;
  Normalisation normalisation = by;
  if (block.training) {
    outputs.statistics = batch_statistics(precision, raw, block.eps);
    normalisation = {outputs.statistics.mean, outputs.statistics.invstd};
  }
  const Affine map = batch_norm(precision, block.bn_weight, block.bn_bias, normalisation, block.activation);
  outputs.y = apply(precision, stored(precision, raw), map);
  return outputs;
}

ConvBnActGradients backward(const ConvBnAct& block, const Normalisation& by, const Array& grad_y) {
  const Precision precision = precision_of(block);
  const Array patches = patches_of(block), matrix = as_matrix(block.weight);
  const Array raw = stored(precision, pointwise(precision, patches, matrix, {}));
  const Affine map = batch_norm(precision, block.bn_weight, block.bn_bias, by, block.activation);
  const Array grad_bn = apply_backward(precision, grad_y, raw, map);
  const Sums sums = gradient_sums(precision, grad_bn, raw, by.mean);
  const BatchNormGradients batch_norm =
      batch_norm_backward(precision, block.bn_weight, by, sums, raw.elements_per_channel(), block.training);
  const Array grad_raw = factors(
      block, stored(precision, apply(precision, factors(block, stored(precision, grad_bn)), raw, batch_norm.input)));

  ConvBnActGradients gradients;
  gradients.bn_weight = batch_norm.weight;
  gradients.bn_bias = batch_norm.bias;
  gradients.weight = pointwise_weight_gradient(precision, grad_raw, patches, matrix.sizes);
  gradients.weight.sizes = block.weight.sizes;
  const Array grad_patches = stored(precision, pointwise_input_gradient(precision, grad_raw, matrix, patches.sizes));
  std::vector<Sum> pulled(block.x.elements.size());
  gradients.x = Array(block.x.sizes);
  for_each_patch_element(block.window, block.x.sizes, patches.sizes, [&](const Sizes& from, const Sizes& to) {
    pulled[static_cast<std::size_t>(&at(gradients.x, to) - gradients.x.elements.data())].add(at(grad_patches, from));
  });
  for (std::size_t i = 0; i < pulled.size(); ++i) gradients.x.elements[i] = pulled[i].result(precision);
  return gradients;
}

}  // namespace fusedsc::reference
