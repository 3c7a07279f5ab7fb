#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_transposed.h"

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kTile = 32, kThreads = 256;  ///< a block: so many outputs and channels; threads

struct TransposedWeightParameters {
  const float* weight = nullptr;
  std::int64_t output_stride = 0, channel_stride = 0;
  float* to = nullptr;
  int outputs = 0, channels = 0, channel_tiles = 1, pitch = 0;
};

FUSEDSC_KERNEL(kThreads, 1)
transposed_weight_kernel(TransposedWeightParameters p) {
  constexpr int kPitch = kTile + 1, kRows = kThreads / kTile;
  auto* tile = static_cast<float*>(shared_memory());
  const int fast = thread_index() % kTile, slow = thread_index() / kTile;
  const int first_channel = static_cast<int>(block_index()) % p.channel_tiles * kTile;
  const int first_output = static_cast<int>(block_index()) / p.channel_tiles * kTile;
  let_next_kernel_start();
  wait_for_previous_kernel();
#pragma unroll
  for (int i = slow; i < kTile; i += kRows) {
    const int output = first_output + i, channel = first_channel + fast;
    if (output < p.outputs && channel < p.channels) {
      tile[i * kPitch + fast] = p.weight[output * p.output_stride + channel * p.channel_stride];
    }
  }
  block_barrier();
#pragma unroll
  for (int i = slow; i < kTile; i += kRows) {
    const int output = first_output + fast, channel = first_channel + i;
    if (output < p.outputs && channel < p.channels) {
      p.to[static_cast<std::int64_t>(channel) * p.pitch + output] = rounded_to_tf32(tile[fast * kPitch + i]);
    }
  }
}

}  // namespace

void launch_transposed_weight(const char* name, const ConstTensorView& weight, float* to, void* stream) {
  TransposedWeightParameters p;
  p.weight = static_cast<const float*>(weight.data);
  p.output_stride = weight.strides[0];
  p.channel_stride = weight.strides[1];
  p.to = to;
  p.outputs = static_cast<int>(weight.sizes[0]);
  p.channels = static_cast<int>(weight.sizes[1]);
  p.pitch = static_cast<int>(transposed_pitch(weight.sizes[0]));
  const auto tiles = [](int size) { return (size + kTile - 1) / kTile; };
  p.channel_tiles = tiles(p.channels);
  launch_following(name, transposed_weight_kernel, std::int64_t{p.channel_tiles} * tiles(p.outputs), kThreads, stream,
                   p, sizeof(float) * kTile * (kTile + 1));
}

}  // namespace fusedsc::gpu::hopper
#endif
