/// Both gradients of an expansion of float32 on Hopper GPUs: what they are told, and the kernel before theirs, which
/// makes what their products multiply by (pointwise_tf32_n_resident_kernel.h).
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

struct Tf32NResidentParameters {
  TensorMap grad_y, x;  ///< tiles of 32 channels
  ConstDeviceTensor weight;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;  ///< a, b, c
  float* image = nullptr;  ///< what products multiply by, and W^T c (Tf32PrepackedWeights)
  const float* added = nullptr;
  float* grad_x = nullptr;
  std::int64_t added_row = 0, grad_x_row = 0;  ///< from position to position
  float* partials = nullptr;                   ///< [split][channel][output]
  int pixels = 0, tiles = 0, outputs = 0, splits = 1;
};

/// The second operands of grad_x's products in the order in which lanes need them: a*W, then W^T b W as the sum of two
/// numbers of TensorFloat-32; behind them W^T c.
template <int kChannels, int kOutputs>
struct Tf32PrepackedWeights {
  static constexpr int kColumnTiles = kChannels / 8, kSteps = kOutputs / 8;
  static constexpr int kScaled = kSteps * kColumnTiles * 64, kMixed = kColumnTiles * kColumnTiles * 64;
  static constexpr int kSize = kScaled + 2 * kMixed + kChannels;
  static constexpr int kThreads = 256, kSums = kChannels * (kChannels + 1);
  static constexpr int kSumBlocks = (kSums + kThreads / 32 - 1) / (kThreads / 32);
  static constexpr int kBlocks = kSumBlocks + (kOutputs * kChannels + kThreads - 1) / kThreads;

  /// Of two tiles a lane has four neighbouring channels, of a third one two: four lanes store whole sectors of memory.
  FUSEDSC_DEVICE static int place_of(int k, int channel) {
    const int pair = channel / 16;
    const bool is_single = 2 * pair + 1 == kColumnTiles;
    const int tile = 2 * pair + (is_single ? 0 : channel % 4 / 2);
    const int column = is_single ? channel % 8 : channel % 16 / 4 * 2 + channel % 2;
    return (k / 8 * kColumnTiles + tile) * 64 + (column * 4 + k % 8 / 2) * 2 + k % 2;
  }

  FUSEDSC_DEVICE static void run(const Tf32NResidentParameters& p) {
    wait_for_previous_kernel();
    const int block = static_cast<int>(block_index()), thread = thread_index();
    const auto weight = [&](int output, int channel) {
      return elements_of<float>(p.weight)[p.weight.offset(output, channel, 0, 0)];
    };
    if (block >= kSumBlocks) {
      const int i = (block - kSumBlocks) * kThreads + thread, output = i / kChannels, channel = i % kChannels;
      if (output >= kOutputs) return;
      const float value = output < p.outputs ? p.grad_scale[output] * weight(output, channel) : 0.0f;
      p.image[place_of(output, channel)] = rounded_to_tf32(value);
      return;
    }
    const int i = block * (kThreads / 32) + thread / 32, row = i / kChannels, channel = i % kChannels;
    float sum = 0;
    for (int output = thread % 32; output < p.outputs && i < kSums; output += 32) {
      // Forward has rounded the weight of e, too.
      const float factor =
          row == kChannels ? p.offset[output] : p.output_scale[output] * rounded_to_tf32(weight(output, row));
      sum += factor * weight(output, channel);
    }
    sum = wave_sum(sum, 32);
    if (i >= kSums || thread % 32 != 0) return;
    if (row == kChannels) {
      p.image[kScaled + 2 * kMixed + channel] = sum;
      return;
    }
    const float high = rounded_to_tf32(sum);
    float* to = p.image + kScaled + place_of(row, channel);
    to[0] = high;
    to[kMixed] = rounded_to_tf32(sum - high);
  }
};

}  // namespace fusedsc::gpu::hopper
