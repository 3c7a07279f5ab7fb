/// Views of tensors whose rows, or images, follow one another in memory, as longer rows: for passes to which all
/// positions are alike.
#pragma once

#include "fusedsc/common/tensor_view.h"

namespace fusedsc {

/// Joins each image's rows into one row of H*W positions, in all of the views given (null ones aside) or in none.
template <class... Views>
void join_all_rows(Views&... views) {
  const auto fits = [](const auto& x) {
    return !x || x.sizes[2] <= 1 || x.sizes[3] <= 1 || x.strides[2] == x.sizes[3] * x.strides[3];
  };
  const auto join = [](auto& x) {
    if (x.sizes[3] == 1) x.strides[3] = x.strides[2];
    x.sizes[3] *= x.sizes[2];
    x.sizes[2] = 1;
  };
  if ((fits(views) && ...)) (join(views), ...);
}

/// Joins the images into one, in all of the views or in none. Their rows must be joined already.
template <class... Views>
void join_all_images(Views&... views) {
  const auto fits = [](const auto& x) {
    return !x || (x.sizes[2] == 1 && (x.sizes[0] <= 1 || x.sizes[3] <= 1 || x.strides[0] == x.sizes[3] * x.strides[3]));
  };
  const auto join = [](auto& x) {
    if (x.sizes[3] == 1) x.strides[3] = x.strides[0];
    x.sizes[3] *= x.sizes[0];
    x.sizes[0] = 1;
  };
  if ((fits(views) && ...)) (join(views), ...);
}

}  // namespace fusedsc
