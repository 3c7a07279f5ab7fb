/// Raw results of convolutions, each with the BatchNorm that whoever reads it applies on the way: what blocks that are
/// chains of plain operators hand from one to the next.
#pragma once

#include "fusedsc/common/clear.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {

/// Operators tell what is given by its address. Without elements there need not be one: then this is `like`, with an
/// address where nothing is.
inline void give_address(TensorView& tensor, const TensorView& like) {
  alignas(64) static char nothing;
  if (tensor || like.elements() != 0) return;
  tensor = like;
  tensor.data = &nothing;
}

// What a batch without images leaves of one BatchNorm.

inline void clear(const BatchNormParameters& bn) {
  clear_statistics(bn.mean, bn.variance, bn.invstd, bn.eps);
  if (bn.scale) batch_norm_finalize(affine_of({bn.weight, bn.bias, bn.mean, bn.invstd}, bn.scale, bn.shift), {});
}

inline void clear(const BatchNormGradients& bn) {
  clear(bn.weight);
  clear(bn.bias);
}

struct NormalisedTensor {
  ConstTensorView raw;  ///< or null data: there is none
  BatchNormParameters parameters;
  ChannelVector scale, shift;

  NormalisedTensor(const ConstTensorView& raw_, const BatchNormParameters& parameters_, Arena& arena)
      : raw(raw_), parameters(parameters_) {
    if (!raw) return;
    scale = parameters.scale ? parameters.scale : take_channels(arena, raw);
    shift = parameters.shift ? parameters.shift : take_channels(arena, raw);
  }

  Prologue prologue(Activation activation) const { return {scale, shift, activation}; }

  /// With all that normalising needs. The sums of squares are left where invstd will be.
  Statistics statistics() const {
    return {parameters.mean,
            parameters.invstd,
            {parameters.weight, parameters.bias, parameters.eps, parameters.invstd, parameters.variance, scale, shift}};
  }

  /// Of a part of the batch, with which nothing can be normalised yet.
  Statistics statistics_of_part() const { return {parameters.mean, parameters.invstd}; }
  /// The BatchNorm with all that is written of it.
  BatchNormParameters written() const {
    BatchNormParameters all = parameters;
    all.scale = scale;
    all.shift = shift;
    return all;
  }

  BatchNormFinalizeArguments affine() const {
    return affine_of({parameters.weight, parameters.bias, parameters.mean, parameters.invstd}, scale, shift);
  }
  /// Where no one has left it.
  void finish_affine(const Execution& execution) const {
    if (raw && !parameters.scale) batch_norm_finalize(affine(), execution);
  }
};

/// The same, and its BatchNorm's backward.
struct NormalisedGradient : NormalisedTensor {
  BatchNormGradients gradients;
  bool training;
  ChannelVector sum_grad, sum_centered, grad_scale, output_scale, offset;

  NormalisedGradient(const ConstTensorView& raw_, const BatchNormParameters& parameters_,
                     const BatchNormGradients& gradients_, bool training_, Arena& arena)
      : NormalisedTensor(raw_, parameters_, arena), gradients(gradients_), training(training_) {
    if (!raw) return;
    for (ChannelVector* vector : {&sum_grad, &sum_centered, &grad_scale, &output_scale, &offset}) {
      *vector = take_channels(arena, raw);
    }
  }

  /// With the coefficients of the gradient prologue and the parameters' gradients, which follow from them.
  GradientSums sums() const {
    return {parameters.mean,
            sum_grad,
            sum_centered,
            {parameters.weight, parameters.invstd, training, grad_scale, output_scale, offset, gradients.weight,
             gradients.bias}};
  }
  /// Of `grad`, the gradient at BatchNorm's output.
  GradientPrologue gradient_prologue(const ConstTensorView& grad) const {
    return raw ? gradient_prologue_of(sums().normaliser, grad, raw) : GradientPrologue();
  }
};

}  // namespace fusedsc
