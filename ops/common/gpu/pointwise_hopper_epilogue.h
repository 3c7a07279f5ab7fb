/// What happens to finished sums of pointwise products on Hopper GPUs (pointwise_hopper.h), where a thread holds pairs
/// of neighbouring channels of two positions.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper.h"
#include "fusedsc/common/gpu/moments.h"

namespace fusedsc::gpu::hopper {

enum class EpilogueKind {
  plain,       ///< nothing
  statistics,  ///< mean and sum of squared deviations
  inference,   ///< affine map, activation, residual
  gradient,    ///< an activation's derivative, sums, a residual's gradient
};

struct EpilogueParameters {
  const void* bias = nullptr;  ///< inference: added before the affine map
  const float *scale = nullptr, *shift = nullptr, *mean = nullptr;
  Activation activation = Activation::identity;
  bool has_x = false;         ///< gradient: that there is a derivative
  bool has_added = false;     ///< inference: a residual; gradient: a residual's gradient
  float* partials = nullptr;  ///< [split][mean, m2, count or grad, grad_times_centered][channel]
};

/// Of kChannels channels of a block; each thread has pairs of every 8 of them.
template <class T, int kChannels, EpilogueKind kKind>
class Epilogue {
 public:
  static constexpr bool kStatistics = kKind == EpilogueKind::statistics, kGradient = kKind == EpilogueKind::gradient;
  static constexpr bool kTakesX = kGradient, kTakesAdded = kGradient || kKind == EpilogueKind::inference;
  static constexpr bool kTakesVectors = kGradient || kKind == EpilogueKind::inference;
  static constexpr int kPartials = kStatistics ? 3 : 2, kFromWarp = kStatistics ? 4 : 2;

  /// Of block memory: vectors, and pivots of each warp.
  FUSEDSC_HOST_DEVICE static constexpr int memory_floats(int warps) {
    return (3 + (kStatistics ? warps : 0)) * kChannels;
  }

  FUSEDSC_DEVICE Epilogue(const EpilogueParameters& p, float* memory, int first_channel, int channels)
      : p_(p), vectors_(memory) {
    for (int c = thread_index(); kTakesVectors && c < kChannels; c += static_cast<int>(blockDim.x)) {
      const bool has = c < channels;
      const int channel = first_channel + c;
      const float scale = p.scale != nullptr && has ? p.scale[channel] : 1.0f;
      const float bias = p.bias != nullptr && has ? to_float(static_cast<const T*>(p.bias)[channel]) : 0.0f;
      vectors_[c] = p.mean != nullptr && has ? p.mean[channel] : 0.0f;
      vectors_[kChannels + c] = scale;
      vectors_[2 * kChannels + c] = (p.shift != nullptr && has ? p.shift[channel] : 0.0f) + scale * bias;
    }
    pivots_ = memory + (3 + thread_index() / 32) * kChannels;
    if constexpr (kStatistics || kGradient) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) sums_[i][0] = sums_[i][1] = 0;
    }
  }

  /// Before a pair of the first tile is taken; `row` of the warp's 16.
  FUSEDSC_DEVICE void set_pivot(int channel, float a, float b) {
    if (thread_index() % 32 >= 4) return;
    pivots_[channel] = a;
    pivots_[channel + 1] = b;
  }
  FUSEDSC_DEVICE void count(bool exists) { count_ += exists ? 1.0f : 0.0f; }

  /// Makes a pair of sums what is to be stored. x, added: words of tiles; `item`: the pair's number in the thread.
  FUSEDSC_DEVICE void take(int item, int channel, bool exists, float& a, float& b, std::uint32_t x,
                           std::uint32_t added) {
    if constexpr (kStatistics) {
      const float2 pivot = pair(pivots_, channel);
      const float da = exists ? a - pivot.x : 0, db = exists ? b - pivot.y : 0;
      add(item, da, db, da * da, db * db);
    } else if constexpr (kKind == EpilogueKind::inference) {
      const float2 scale = pair(vectors_ + kChannels, channel), shift = pair(vectors_ + 2 * kChannels, channel);
      float y[2] = {a * scale.x + shift.x, b * scale.y + shift.y};
      activate(p_.activation, y);
      a = y[0];
      b = y[1];
    } else if constexpr (kGradient) {
      if (p_.has_x) {
        const float2 scale = pair(vectors_ + kChannels, channel), shift = pair(vectors_ + 2 * kChannels, channel);
        float xa, xb;
        to_floats(x, xa, xb, T());
        const float z[2] = {xa * scale.x + shift.x, xb * scale.y + shift.y};
        float g[2] = {a, b};
        activate_backward(p_.activation, z, g);
        a = g[0];
        b = g[1];
        if (p_.partials != nullptr) {
          const float2 mean = pair(vectors_, channel);
          const float ka = exists ? a : 0, kb = exists ? b : 0;
          add(item, ka, kb, ka * (xa - mean.x), kb * (xb - mean.y));
        }
      }
    }
    if constexpr (kTakesAdded) {
      if (p_.has_added) {
        float addend[2];
        to_floats(added, addend[0], addend[1], T());
        a += addend[0];
        b += addend[1];
      }
    }
  }

  /// Puts together what the threads have summed; block memory must be free by then.
  FUSEDSC_DEVICE void finish(float* memory, int split, int first_channel, int channels, int all_channels) {
    if constexpr (kStatistics || kGradient) {
      if (p_.partials == nullptr) return;
      share_lanes();
      const int warp = thread_index() / 32, warps = static_cast<int>(blockDim.x) / 32;
      float* own = memory + warp * kFromWarp * kChannels;
      if (thread_index() % 32 < 4) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const int channel = i / 2 * 8 + thread_index() % 4 * 2 + i % 2;
          leave(own, channel, sums_[i]);
        }
      }
      block_barrier();
      for (int c = thread_index(); c < channels; c += static_cast<int>(blockDim.x)) {
        float merged[kPartials + 1] = {};
        for (int w = 0; w < warps; ++w) merge(merged, memory + c, memory + w * kFromWarp * kChannels + c);
        float* row = p_.partials + static_cast<std::int64_t>(split) * kPartials * all_channels + first_channel + c;
        if constexpr (kStatistics) {
          const float distance = merged[0] / (merged[2] > 0 ? merged[2] : 1.0f);
          merged[1] = propagating_max(merged[1] - merged[0] * distance, 0.0f);
          merged[0] = memory[3 * kChannels + c] + distance;
        }
        for (int i = 0; i < kPartials; ++i) row[static_cast<std::int64_t>(i) * all_channels] = merged[i];
      }
    }
  }

 private:
  static constexpr int kItems = kChannels / 4;

  FUSEDSC_DEVICE static float2 pair(const float* vector, int channel) {
    return *reinterpret_cast<const float2*>(vector + channel);
  }

  FUSEDSC_DEVICE void add(int item, float a, float b, float other_a, float other_b) {
    sums_[2 * item][0] += a;
    sums_[2 * item + 1][0] += b;
    sums_[2 * item][1] += other_a;
    sums_[2 * item + 1][1] += other_b;
  }

  /// The eight lanes that meet the same channels add up.
  FUSEDSC_DEVICE void share_lanes() {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      if constexpr (kStatistics) count_ += shuffle_xor(count_, distance);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        sums_[i][0] += shuffle_xor(sums_[i][0], distance);
        sums_[i][1] += shuffle_xor(sums_[i][1], distance);
      }
    }
  }

  FUSEDSC_DEVICE void leave(float* memory, int channel, const float (&sums)[2]) const {
    memory[channel] = sums[0];
    memory[kChannels + channel] = sums[1];
    if constexpr (kStatistics) {
      memory[2 * kChannels + channel] = count_;
      memory[3 * kChannels + channel] = pivots_[channel];
    }
  }

  /// Adds a warp's sums; those of differences from its pivot become differences from the first warp's.
  FUSEDSC_DEVICE static void merge(float (&merged)[kPartials + 1], const float* first, const float* own) {
    float sum = own[0], squares = own[kChannels];
    if constexpr (kStatistics) {
      const float count = own[2 * kChannels];
      if (count == 0) return;  // its pivot is nothing
      const float distance = own[3 * kChannels] - first[3 * kChannels];
      squares += distance * (2 * sum + count * distance);
      sum += count * distance;
      merged[2] += count;
    }
    merged[0] += sum;
    merged[1] += squares;
  }

  const EpilogueParameters& p_;
  float *vectors_, *pivots_;
  float count_ = 0;
  float sums_[kStatistics || kGradient ? kItems : 1][2];
};

}  // namespace fusedsc::gpu::hopper
