#include "reference/conv_chain.h"

#include "reference/convolution.h"

namespace fusedsc::reference {
namespace {

Array convolve(const Precision& precision, const ChainStage& stage, const Array& x) {
  return stage.is_depthwise ? depthwise(precision, x, stage.weight, stage.bias, stage.window)
                            : pointwise(precision, x, stage.weight, stage.bias);
}

/// What is done to a stage's raw result, of which the statistics are given.
Affine map_of(const Precision& precision, const ChainStage& stage, const Normalisation& by) {
  if (!stage.has_batch_norm) return {{}, {}, stage.activation};
  return batch_norm(precision, stage.bn_weight, stage.bn_bias, by, stage.activation);
}

bool ends_in_pass(const ConvChain& chain) {
  const ChainStage& last = chain.stages.back();
  return last.has_batch_norm || last.activation != Activation::identity || !chain.branch_scale.empty();
}

}  // namespace

Array scale_images(const Precision& precision, const Array& x, const Vector& scale) {
  if (scale.empty()) return x;
  Array y(x.sizes);
  for_each_index(x.sizes, [&](auto n, auto c, auto h, auto w) {
    y.at(n, c, h, w) = sum_of(precision, {product(scale[static_cast<std::size_t>(n)], x.at(n, c, h, w))});
  });
  return y;
}

ConvChainOutputs forward(const ConvChain& chain) {
  const Precision precision(chain.dtype);
  ConvChainOutputs outputs;
  Array a = apply(precision, chain.x, {{}, {}, chain.input_activation});
  for (const ChainStage& stage : chain.stages) {
    const Array raw = convolve(precision, stage, a);
    outputs.raw.push_back(raw);
    const bool takes_statistics = chain.training && stage.has_batch_norm;
    outputs.statistics.push_back(takes_statistics ? batch_statistics(precision, raw, chain.eps) : BatchStatistics());
    const BatchStatistics& own = outputs.statistics.back();
    const Affine map = map_of(precision, stage, takes_statistics ? Normalisation{own.mean, own.invstd} : stage.by);
    const bool is_stored = &stage != &chain.stages.back() || ends_in_pass(chain);
    a = apply(precision, is_stored ? stored(precision, raw) : raw, map);
    if (chain.stores_activated) a = stored(precision, a);
  }
  outputs.y = scale_images(precision, a, chain.branch_scale);
  if (chain.residual) outputs.y = add(precision, outputs.y, chain.x);
  return outputs;
}

ConvChainGradients backward(const ConvChain& chain, const std::vector<Array>& raw, const Array& grad_y) {
  const Precision precision(chain.dtype);
  ConvChainGradients gradients;
  gradients.stages.resize(chain.stages.size());
  Array grad = scale_images(precision, grad_y, chain.branch_scale);
  for (std::size_t i = chain.stages.size(); i-- > 0;) {
    const ChainStage& stage = chain.stages[i];
    ConvChainGradients::Stage& own = gradients.stages[i];
    grad = apply_backward(precision, grad, raw[i], map_of(precision, stage, stage.by));
    if (stage.has_batch_norm) {
      const Sums sums = gradient_sums(precision, grad, raw[i], stage.by.mean);
      own.bn = batch_norm_backward(precision, stage.bn_weight, stage.by, sums, raw[i].elements_per_channel(),
                                   chain.training);
      grad = apply(precision, stored(precision, grad), raw[i], own.bn.input);
    } else {
      grad = stored(precision, grad);
    }
    const Array& from = i == 0 ? chain.x : raw[i - 1];
    const Affine before = i == 0 ? Affine{{}, {}, chain.input_activation}
                                 : map_of(precision, chain.stages[i - 1], chain.stages[i - 1].by);
    const Array a = apply(precision, from, before);
    own.bias = channel_sums(precision, grad);
    if (stage.is_depthwise) {
      own.weight = depthwise_weight_gradient(precision, grad, a, stage.window, stage.weight.sizes);
      grad = depthwise_input_gradient(precision, grad, stage.weight, stage.window, a.sizes);
    } else {
      own.weight = pointwise_weight_gradient(precision, grad, a, stage.weight.sizes);
      grad = pointwise_input_gradient(precision, grad, stage.weight, a.sizes);
    }
  }
  gradients.x = apply_backward(precision, grad, chain.x, {{}, {}, chain.input_activation});
  if (chain.residual) gradients.x = add(precision, gradients.x, grad_y);
  return gradients;
}

}  // namespace fusedsc::reference
