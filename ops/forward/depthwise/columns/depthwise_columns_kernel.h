/// Depthwise convolution of float32 channels_last tensors on Hopper GPUs, forward. A row of x is in registers once and
/// serves all rows of y whose windows cover it; finished rows leave by TMA.
#pragma once

#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseColumnsParameters : DepthwiseColumnsShape {
  TensorMap x, y;
  ConstDeviceTensor weight;
  const float* bias = nullptr;
};

/// kColumns: of y, of a warp.
template <int kKernel, int kStride, int kColumns>
class DepthwiseColumns {
 public:
  static constexpr int kInputs = (kColumns - 1) * kStride + kKernel, kKept = (kKernel - 1) / kStride;
  static constexpr int kPitch = DepthwiseColumnsShape::kChannels * 4, kRowBytes = kInputs * kPitch;
  static constexpr int kOutBytes = kColumns * kPitch, kOuts = 2;

  /// Rows of padding are passed over, but where the second path takes too many registers.
  static constexpr bool kPassesPadding = kKernel < 5 || kStride > 1 || kColumns < 14;
  static constexpr int kWarps = DepthwiseColumnsShape::kWarps, kWeightBytes = kPitch * kKernel * kKernel;

  FUSEDSC_HOST_DEVICE static int warp_bytes(int stages) { return stages * kRowBytes + kOuts * kOutBytes; }
  FUSEDSC_HOST_DEVICE static int block_bytes(int stages) {
    return WarpStages::block_bytes(kWarps, warp_bytes(stages), stages) + kWeightBytes;
  }

  FUSEDSC_DEVICE static void run(const DepthwiseColumnsParameters& p) {
    DepthwiseColumns columns(p);
    columns.loop();
  }

 private:
  using Cursor = ColumnsCursor<kKernel, kStride, kColumns>;

  FUSEDSC_DEVICE explicit DepthwiseColumns(const DepthwiseColumnsParameters& p)
      : p_(p),
        warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        stages_(kWarps, warp_, warp_bytes(p.stages), p.stages) {
    std::uint32_t group = block_index();
    split_ = static_cast<int>(p.by_channel_groups.divide(group));
    first_channel_ = static_cast<int>(group) * p.kChannels;
#pragma unroll
    for (int i = 0; i < kKept * kColumns; ++i) sums_[i / kColumns][i % kColumns] = 0;
  }

  FUSEDSC_DEVICE void loop() {
    if (thread_index() < 2) prefetch(thread_index() == 0 ? p_.x : p_.y);
    stages_.start();
    Cursor at(p_, split_ * kWarps + warp_, p_.splits * kWarps), ahead = at;
    keep_order(at.place());
    wait_for_previous_kernel();
    const auto copy = [&](const Cursor& next, int slot) {
      expect(stages_.barriers + slot, kRowBytes);
      start_load(stages_.memory + slot * kRowBytes, p_.x, next.input(first_channel_), stages_.barriers + slot);
    };
    stages_.start_first(ahead, copy);
    load_coefficients();
    int out = 0;
    stages_.work_off(at, ahead, copy, [&](const Cursor& now, int slot) {
      float x[kInputs], finished[kColumns];
      if (!kPassesPadding || now.is_inside()) {
        const auto* row = reinterpret_cast<const float*>(stages_.memory + slot * kRowBytes) + lane_;
#pragma unroll
        for (int c = 0; c < kInputs; ++c) x[c] = row[c * p_.kChannels];
        if (now.begins_output()) {
          add<0>(x, finished);
        } else {
          add<kStride - 1>(x, finished);
        }
      } else if (now.begins_output()) {
        pass(finished);
      }
      if (!now.begins_output() || now.row < kKernel - 1) return;
      unsigned char* rows = stages_.memory + p_.stages * kRowBytes + out * kOutBytes;
      if (stages_.is_leader) wait_for_stores<kOuts - 1>();
      warp_barrier();
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        reinterpret_cast<float*>(rows)[c * p_.kChannels + lane_] = finished[c];
      }
      publish();
      warp_barrier();
      if (stages_.is_leader) {
        start_store(p_.y, {first_channel_, now.column, now.first_output() - kKept, now.image}, rows);
        commit_stores();
      }
      out = kOuts - 1 - out;
    });
    if (stages_.is_leader) wait_for_stores();
  }

  /// Instead of add<0>, where the row is padding.
  FUSEDSC_DEVICE void pass(float (&finished)[kColumns]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      finished[c] = sums_[kKept - 1][c];
#pragma unroll
      for (int age = kKept - 1; age > 0; --age) sums_[age][c] = sums_[age - 1][c];
      sums_[0][c] = bias_;
    }
  }

  /// Neighbours load neighbouring weights, which in most weight tensors lie next to each other, and take those of their
  /// channel from shared memory.
  FUSEDSC_DEVICE void load_coefficients() {
    constexpr int kTaps = kKernel * kKernel, kThreads = kWarps * 32,
                  kEach = (DepthwiseColumnsShape::kChannels * kTaps - 1) / kThreads + 1;
    const int count = least(p_.kChannels, p_.channels - first_channel_), own = lane_ < count ? lane_ : 0;
    auto* weights = reinterpret_cast<float*>(stages_.rest);
    float loaded[kEach];  // under way at the same time
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int element = thread_index() + i * kThreads, channel = element / kTaps, tap = element % kTaps;
      if (channel >= count) continue;
      loaded[i] =
          elements_of<float>(p_.weight)[p_.weight.offset(first_channel_ + channel, 0, tap / kKernel, tap % kKernel)];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int element = thread_index() + i * kThreads;
      if (element < count * kTaps) weights[element] = loaded[i];
    }
    block_barrier();
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) weights_[tap] = weights[own * kTaps + tap];
    bias_ = p_.bias != nullptr ? p_.bias[first_channel_ + own] : 0.0f;
  }

  /// A row of x, number kPhase of those that a row of y moves on by, to all rows of y whose windows cover it.
  template <int kPhase>
  FUSEDSC_DEVICE void add(const float (&x)[kInputs], float (&finished)[kColumns]) {
#pragma unroll
    for (int age = kKept; age >= 0; --age) {
      const int kh = kPhase + age * kStride;
      if (kh >= kKernel) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float sum = kPhase > 0 ? sums_[age][c] : age == 0 ? bias_ : sums_[age - 1][c];
#pragma unroll
        for (int kw = 0; kw < kKernel; ++kw) sum += x[c * kStride + kw] * weights_[kh * kKernel + kw];
        if (kPhase == 0 && age == kKept) finished[c] = sum;
        else sums_[age][c] = sum;
      }
    }
  }

  const DepthwiseColumnsParameters& p_;
  int warp_, lane_;
  WarpStages stages_;
  int split_, first_channel_;
  float weights_[kKernel * kKernel], bias_;
  float sums_[kKept][kColumns];
};

}  // namespace fusedsc::gpu::hopper
