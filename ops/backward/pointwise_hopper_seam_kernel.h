/// Pointwise convolution on Hopper GPUs, backward: the gradient prologue as a pass of its own. Of many outputs each
/// element is used so often that it is worth one.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/vector.h"

namespace fusedsc::gpu::hopper {

struct GradientSeamParameters {
  const void *grad_y = nullptr, *output = nullptr;
  void* to = nullptr;                           ///< dense
  std::int64_t grad_y_row = 0, output_row = 0;  ///< from a position to the next
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  int pixels = 0, runs = 0;  ///< runs of 16 bytes of outputs
  int rows = 1;              ///< positions that a block takes at once: threads are runs * rows
};

template <class T>
FUSEDSC_DEVICE void apply_gradient_seam(const GradientSeamParameters& p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  constexpr int kRun = 16 / static_cast<int>(sizeof(T));
  const int output = thread_index() % p.runs * kRun;
  float scales[3][kRun];
#pragma unroll
  for (int v = 0; v < kRun; ++v) {
    scales[0][v] = value_or(p.grad_scale, output + v, 1.0f);
    scales[1][v] = value_or(p.output_scale, output + v, 0.0f);
    scales[2][v] = value_or(p.offset, output + v, 0.0f);
  }
  const int step = static_cast<int>(block_count()) * p.rows;
#pragma unroll 4
  for (int pixel = static_cast<int>(block_index()) * p.rows + thread_index() / p.runs; pixel < p.pixels;
       pixel += step) {
    float grad[kRun], other[kRun];
    load<kRun>(static_cast<const T*>(p.grad_y) + pixel * p.grad_y_row + output).widen(grad);
    load<kRun>(static_cast<const T*>(p.output) + pixel * p.output_row + output).widen(other);
#pragma unroll
    for (int v = 0; v < kRun; ++v) grad[v] = grad[v] * scales[0][v] + (other[v] * scales[1][v] + scales[2][v]);
    store<kRun>(grad, static_cast<T*>(p.to) + (std::int64_t{pixel} * p.runs * kRun + output));
  }
}

}  // namespace fusedsc::gpu::hopper
