/// What the kernel for both depthwise gradients on Hopper GPUs is told.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseFusedGradientsParameters {
  TensorMap grad_y, output, x, grad_x;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;  ///< of the gradient prologue
  const float *scale = nullptr, *shift = nullptr;                                 ///< of the prologue
  Activation activation = Activation::identity;
  float low = 0, high = 0;  ///< what it clamps to
  const float* mean = nullptr;
  float* partials = nullptr;  ///< [split][tap..., sum of g, of g*(x - mean)][channel]
  ConstDeviceTensor weight;
  int channels = 0, input_height = 0, input_width = 0, output_height = 0, output_width = 0;
  // A block has a group of channels; its warps share the items out with those of all splits. An item: strip_rows rows
  // (of the output) of a tile's columns of an image.
  int warps = 1, splits = 1, items = 0, strip_rows = 1;
  Divisor by_channel_groups, column_tiles, strips;
};

enum class GradientsFusion {
  input_alone,  ///< and the gradient of x is all that is wanted
  none,
  gradient,  ///< a gradient prologue
  clamp,     ///< and a prologue whose activation only clamps
  silu,      ///< or is this one
  hardswish,
  gelu
};

/// What a thread must know of its channels; of those beyond the last one zeros, which make zeros.
template <int kWide>
struct GradientsChannels {
  float grad_scale[kWide], output_scale[kWide], offset[kWide];  ///< of the gradient prologue, or halves of grad_y
  float scale[kWide], shift[kWide], mean[kWide];

  FUSEDSC_DEVICE void load(const DepthwiseFusedGradientsParameters& p, int channel) {
    const bool exists = channel < p.channels;
    const auto load = [&](const float* vector, float otherwise, float(&to)[kWide]) {
#pragma unroll
      for (int v = 0; v < kWide; ++v) to[v] = !exists ? 0.0f : vector != nullptr ? vector[channel + v] : otherwise;
    };
    load(p.grad_scale, 0.5f, grad_scale);
    load(p.output_scale, 0.5f, output_scale);
    load(p.offset, 0, offset);
    load(p.scale, 1, scale);
    load(p.shift, 0, shift);
    load(p.mean, 0, mean);
  }
};

/// The weights of a thread's channels. Those of large windows leave no registers for anything else: they lie in
/// shared memory, and a thread reads each for several elements at once.
template <class T, int kKernel, int kWide, int kLanes>
class GradientsWeights {
  static constexpr int kTaps = kKernel * kKernel, kChannels = kWide * kLanes;

 public:
  static constexpr bool kInMemory = kKernel > 3;
  static constexpr int kMemoryBytes = kInMemory ? kTaps * kChannels * 4 : 0;  ///< of a block

  /// By all threads of a block, whose channels begin with first_channel.
  FUSEDSC_DEVICE void load(const DepthwiseFusedGradientsParameters& p, int first_channel, unsigned char* memory) {
    const int lane = thread_index() % kLanes;
    if constexpr (kInMemory) {
      auto* to = reinterpret_cast<float*>(memory);
      for (int i = thread_index(); i < kTaps * kChannels; i += p.warps * 32) {
        const int tap = i / kChannels, channel = first_channel + i % kChannels;
        const std::int64_t place = p.weight.offset(channel, 0, tap / kKernel, tap % kKernel);
        to[i] = channel < p.channels ? to_accumulator(elements_of<T>(p.weight)[place]) : 0;
      }
      block_barrier();
      memory_ = to + lane * kWide;
    } else {
      const int channel = first_channel + lane * kWide;
      load_weights<T, kKernel, kKernel, kWide>(p.weight, channel < p.channels ? channel : 0, registers_);
    }
  }

  FUSEDSC_DEVICE void read(int tap, float (&to)[kWide]) const {
    if constexpr (kInMemory) {
      gpu::load<kWide>(memory_ + tap * kChannels).widen(to);
    } else {
#pragma unroll
      for (int v = 0; v < kWide; ++v) to[v] = registers_[tap * kWide + v];
    }
  }

 private:
  const float* memory_;
  float registers_[kInMemory ? 1 : kTaps * kWide];
};

}  // namespace fusedsc::gpu::hopper
