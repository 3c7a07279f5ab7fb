/// Depthwise convolution of small problems on GPUs, input gradient at stride 2: see depthwise_direct.h. (At stride 1 it
/// is a forward pass.)
#pragma once

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct.h"

namespace fusedsc::gpu {

struct DepthwiseDirectInputParameters {
  ConstCompactTensor grad_y;
  const void* weight = nullptr;  ///< dense
  CompactTensor grad_x;
  DirectWork work;
  int grad_height = 0, grad_width = 0, height = 0, width = 0;  ///< of images of grad_y and grad_x
  int first_row = 0, first_column = 0;                         ///< of grad_y: of the first thread
  int padding_top = 0, padding_left = 0;
};

/// A thread has kRows pairs of rows of a pair of columns of the padded input. Row 2*q + e of it is covered by the rows
/// q - j of grad_y, with tap 2*j + e; so the pairs' elements share what is loaded, and which tap belongs to what is
/// known to the compiler.
template <class T, int kKernel, int kChannels, int kRows, bool kChannelsLast>
struct DepthwiseDirectInput {
  using A = Accumulator<T>;
  static constexpr int kReach = (kKernel - 1) / 2 + 1;
  using Weights = DirectWeights<T, kKernel * kKernel, kChannels, kChannelsLast>;
  using GradY = DirectWindow<T, kChannels, kReach + kRows - 1, kReach>;  // from the last to the first

  FUSEDSC_DEVICE static void run(const DepthwiseDirectInputParameters& p) {
    let_next_kernel_start();
    const DirectPlace<kChannels, kRows, kChannelsLast> place(p.work);
    Weights weights(p.weight, p.work, place);
    const int row = p.first_row + place.row, column = p.first_column + place.column;
    GradY grad_y;
    grad_y.aim(p.grad_y, p.grad_y.offset(place.image, place.channel), row + kRows - 1, column, -1, p.grad_height,
               p.grad_width);
    const std::uint32_t bits = grad_y.bits() | weights.bits();
    keep_order(bits);
    wait_for_previous_kernel();
    grad_y.load(p.grad_y);
    weights.load();
    keep_order(bits);
    weights.share();
    grad_y.mask();
    A sums[2 * kRows][2][kChannels] = {};
    weights.for_each(place.channel_lane, [&](int v, int tap, A weight) {
      const int kh = tap / kKernel, kw = tap % kKernel;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sums[2 * r + kh % 2][kw % 2][v] += grad_y.at(kRows - 1 - r + kh / 2, kw / 2, v) * weight;
      }
    });
    T* image = static_cast<T*>(p.grad_x.data) + p.grad_x.offset(place.image, place.channel);
#pragma unroll
    for (int r = 0; r < 2 * kRows; ++r) {
      const int h = 2 * row + r - p.padding_top;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int w = 2 * column + c - p.padding_left;
        if (place.is_idle || h < 0 || h >= p.height || w < 0 || w >= p.width) continue;
        store<kChannels>(sums[r][c], image + (static_cast<std::uint32_t>(h) * p.grad_x.row +
                                              static_cast<std::uint32_t>(w) * p.grad_x.column));
      }
    }
  }
};

}  // namespace fusedsc::gpu
