/// What happens to finished sums of pointwise products on Hopper GPUs (pointwise_hopper.h), where a thread holds pairs
/// of neighbouring channels of two positions.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_pairs.h"

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

/// Of kChannels channels that kThreads threads share; each thread has pairs of every 8 of them. `thread`: its number
/// among them.
template <class T, int kChannels, int kThreads, EpilogueKind kKind>
class Epilogue {
 public:
  static constexpr bool kStatistics = kKind == EpilogueKind::statistics, kGradient = kKind == EpilogueKind::gradient;
  static constexpr bool kTakesX = kGradient, kTakesAdded = kGradient || kKind == EpilogueKind::inference;
  static constexpr bool kTakesVectors = kGradient || kKind == EpilogueKind::inference;
  static constexpr bool kHasWork = kKind != EpilogueKind::plain;  ///< on sums, or with them
  static constexpr int kPartials = kStatistics ? 3 : 2, kFromWarp = kStatistics ? 4 : 2;

  /// Of shared memory: vectors, and pivots of each warp.
  FUSEDSC_HOST_DEVICE static constexpr int memory_floats(int warps) {
    return (3 + (kStatistics ? warps : 0)) * kChannels;
  }

  FUSEDSC_DEVICE Epilogue(const EpilogueParameters& p, float* memory, int first_channel, int channels, int thread)
      : p_(p), vectors_(memory), thread_(thread) {
    for (int c = thread; kTakesVectors && c < kChannels; c += kThreads) {
      const bool has = c < channels;
      const int channel = first_channel + c;
      const float scale = p.scale != nullptr && has ? p.scale[channel] : 1.0f;
      const float bias = p.bias != nullptr && has ? to_accumulator(static_cast<const T*>(p.bias)[channel]) : 0.0f;
      vectors_[c] = p.mean != nullptr && has ? p.mean[channel] : 0.0f;
      vectors_[kChannels + c] = scale;
      vectors_[2 * kChannels + c] = (p.shift != nullptr && has ? p.shift[channel] : 0.0f) + scale * bias;
    }
    pivots_ = memory + (3 + thread / 32) * kChannels;
    if constexpr (kStatistics || kGradient) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) sums_[i][0] = sums_[i][1] = 0;
    }
  }

  /// Before a pair of the first tile is taken; `row` of the warp's 16.
  FUSEDSC_DEVICE void set_pivot(int channel, float a, float b) {
    if (thread_ % 32 >= 4) return;
    pivots_[channel] = a;
    pivots_[channel + 1] = b;
  }
  FUSEDSC_DEVICE void count(bool exists) { count_ += exists ? 1.0f : 0.0f; }

  /// Makes sums what is to be stored: the lane's pairs of the 8 channels from `channel` on, and of the next 8, each of
  /// two positions, the nearer channels first. x, added: likewise, of tiles.
  FUSEDSC_DEVICE void take(int channel, const bool (&exists)[2], float (&y)[8], const Pair<T> (&x)[4],
                           const Pair<T> (&added)[4]) {
    if constexpr (kStatistics) {
      float pivot[8];
      read(pivots_, channel, pivot);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float difference = exists[i / 2 % 2] ? y[i] - pivot[i] : 0.0f;
        add(channel, i, difference, difference * difference);
      }
    } else if constexpr (kKind == EpilogueKind::inference) {
      map(channel, y, y);
      activate(p_.activation, y);
    } else if constexpr (kGradient) {
      if (p_.has_x) {
        float values[8], z[8];
        widen(x, values);
        map(channel, values, z);
        activate_backward(p_.activation, z, y);
        if (p_.partials != nullptr) {
          float mean[8];
          read(vectors_, channel, mean);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float kept = exists[i / 2 % 2] ? y[i] : 0.0f;
            add(channel, i, kept, kept * (values[i] - mean[i]));
          }
        }
      }
    }
    if constexpr (kTakesAdded) {
      if (p_.has_added) {
        float addends[8];
        widen(added, addends);
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] += addends[i];
      }
    }
  }

  /// Of shared memory, while sums are put together.
  FUSEDSC_HOST_DEVICE static constexpr int merging_floats() { return kThreads / 32 * kFromWarp * kChannels; }

  /// What the thread has summed, to shared memory, which must be free by then.
  FUSEDSC_DEVICE void leave(float* memory) {
    if constexpr (kStatistics || kGradient) {
      if (p_.partials == nullptr) return;
      share_lanes();
      float* own = memory + thread_ / 32 * kFromWarp * kChannels;
      if (thread_ % 32 >= 4) return;
#pragma unroll
      for (int i = 0; i < kItems; ++i) leave(own, i / 2 * 8 + thread_ % 4 * 2 + i % 2, sums_[i]);
    }
  }

  /// Puts together what all have left there.
  FUSEDSC_DEVICE void merge(const float* memory, int split, int first_channel, int channels, int all_channels) const {
    if constexpr (kStatistics || kGradient) {
      if (p_.partials == nullptr) return;
      for (int c = thread_; c < channels; c += kThreads) {
        float merged[kPartials + 1] = {};
        for (int w = 0; w < kThreads / 32; ++w) merge(merged, memory + c, memory + w * kFromWarp * kChannels + c);
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

  /// A vector's values for eight sums.
  FUSEDSC_DEVICE void read(const float* vector, int channel, float (&to)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const auto pair = *reinterpret_cast<const Aligned<float, 2>*>(vector + channel + 2 * i + thread_ % 4 * 2);
      to[i] = to[i + 2] = pair.elements[0];
      to[i + 1] = to[i + 3] = pair.elements[1];
    }
  }

  FUSEDSC_DEVICE static void widen(const Pair<T> (&pairs)[4], float (&to)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to_floats(pairs[i], to[2 * i], to[2 * i + 1], T());
  }

  FUSEDSC_DEVICE void map(int channel, const float (&from)[8], float (&to)[8]) const {
    float scale[8], shift[8];
    read(vectors_ + kChannels, channel, scale);
    read(vectors_ + 2 * kChannels, channel, shift);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = from[i] * scale[i] + shift[i];
  }

  /// To the sums of the i-th of eight.
  FUSEDSC_DEVICE void add(int channel, int i, float value, float other) {
    auto& sums = sums_[(channel / 8 + i / 4) * 2 + i % 2];
    sums[0] += value;
    sums[1] += other;
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
  int thread_;
  float count_ = 0;
  float sums_[kStatistics || kGradient ? kItems : 1][2];
};

}  // namespace fusedsc::gpu::hopper
