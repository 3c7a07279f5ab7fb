/// Depthwise convolution of float32 channels_last tensors on Hopper GPUs, weight and bias gradients alone. A row of x
/// meets the rows of grad_y whose windows cover it, which are in registers, as all sums are.
#pragma once

#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseColumnsWeightParameters : DepthwiseColumnsShape {
  TensorMap x, grad_y;
  float* partials = nullptr;  ///< [split][tap..., bias][channel]
};

/// kColumns: of grad_y, of a warp.
template <int kKernel, int kStride, int kColumns>
class DepthwiseColumnsWeight {
 public:
  static constexpr int kInputs = (kColumns - 1) * kStride + kKernel, kLive = (kKernel - 1) / kStride + 1;
  static constexpr int kPitch = DepthwiseColumnsShape::kChannels * 4, kRowBytes = kInputs * kPitch;
  static constexpr int kGradBytes = kColumns * kPitch, kStageBytes = kRowBytes + kGradBytes;
  static constexpr int kSums = kKernel * kKernel + 1;

  FUSEDSC_HOST_DEVICE static int warp_bytes(int stages) {
    return stages * kStageBytes > kSums * 128 ? stages * kStageBytes : kSums * 128;
  }

  FUSEDSC_DEVICE static void run(const DepthwiseColumnsWeightParameters& p) {
    DepthwiseColumnsWeight columns(p);
    columns.loop();
    columns.leave_sums();
  }

 private:
  using Cursor = ColumnsCursor<kKernel, kStride, kColumns>;

  FUSEDSC_DEVICE explicit DepthwiseColumnsWeight(const DepthwiseColumnsWeightParameters& p)
      : p_(p),
        warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        stages_(p.kWarps, warp_, warp_bytes(p.stages), p.stages) {
    std::uint32_t group = block_index();
    split_ = static_cast<int>(p.by_channel_groups.divide(group));
    first_channel_ = static_cast<int>(group) * p.kChannels;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_[i] = 0;
#pragma unroll
    for (int i = 0; i < kLive * kColumns; ++i) grads_[i / kColumns][i % kColumns] = 0;
  }

  FUSEDSC_DEVICE static bool brings_gradients(const Cursor& at) {
    return at.begins_output() && at.first_output() < at.end;
  }

  FUSEDSC_DEVICE void start_copies(const Cursor& next, int slot) const {
    Barrier* barrier = stages_.barriers + slot;
    unsigned char* to = stages_.memory + slot * kStageBytes;
    const bool has_gradients = brings_gradients(next);
    expect(barrier, kRowBytes + (has_gradients ? kGradBytes : 0));
    start_load(to, p_.x, next.input(first_channel_), barrier);
    if (has_gradients) {
      start_load(to + kRowBytes, p_.grad_y, {first_channel_, next.column, next.first_output(), next.image}, barrier);
    }
  }

  FUSEDSC_DEVICE void loop() {
    if (thread_index() < 2) prefetch(thread_index() == 0 ? p_.x : p_.grad_y);
    stages_.start();
    Cursor at(p_, split_ * p_.kWarps + warp_, p_.splits * p_.kWarps), ahead = at;
    keep_order(at.place());
    wait_for_previous_kernel();
    let_next_kernel_start();
    const auto copy = [&](const Cursor& next, int slot) { start_copies(next, slot); };
    stages_.start_first(ahead, copy);
    stages_.work_off(at, ahead, copy, [&](const Cursor& now, int slot) {
      const auto* row = reinterpret_cast<const float*>(stages_.memory + slot * kStageBytes) + lane_;
      const bool is_new = now.begins_output();
      if (is_new) take_gradients(row + kInputs * p_.kChannels, brings_gradients(now), now.row == 0);
      if (!now.is_inside()) return;
      float x[kInputs];
#pragma unroll
      for (int c = 0; c < kInputs; ++c) x[c] = row[c * p_.kChannels];
      if (is_new) add<0>(x);
      else add<kStride - 1>(x);
    });
  }

  FUSEDSC_DEVICE void take_gradients(const float* row, bool exists, bool is_first) {
#pragma unroll
    for (int age = kLive - 1; age > 0; --age) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) grads_[age][c] = is_first ? 0 : grads_[age - 1][c];
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      grads_[0][c] = exists ? row[c * p_.kChannels] : 0;
      sums_[kSums - 1] += grads_[0][c];
    }
  }

  template <int kPhase>
  FUSEDSC_DEVICE void add(const float (&x)[kInputs]) {
#pragma unroll
    for (int age = 0; age < kLive; ++age) {
      const int kh = kPhase + age * kStride;
      if (kh >= kKernel) continue;
#pragma unroll
      for (int kw = 0; kw < kKernel; ++kw) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums_[kh * kKernel + kw] += grads_[age][c] * x[c * kStride + kw];
      }
    }
  }

  /// The block's, added up in the order of its warps.
  FUSEDSC_DEVICE void leave_sums() const {
    block_barrier();  // all warps are done with their rows
    auto* own = reinterpret_cast<float*>(stages_.memory);
#pragma unroll
    for (int i = 0; i < kSums; ++i) own[i * 32 + lane_] = sums_[i];
    block_barrier();
    const int warp_floats = warp_bytes(p_.stages) / 4;
    const float* first = own - warp_ * warp_floats;
    float* to = p_.partials + static_cast<std::int64_t>(split_) * kSums * p_.channels + first_channel_;
    for (int i = thread_index(); i < kSums * 32; i += p_.kWarps * 32) {
      if (first_channel_ + i % 32 >= p_.channels) continue;
      float sum = 0;
      for (int warp = 0; warp < p_.kWarps; ++warp) sum += first[warp * warp_floats + i];
      to[static_cast<std::int64_t>(i / 32) * p_.channels + i % 32] = sum;
    }
  }

  const DepthwiseColumnsWeightParameters& p_;
  int warp_, lane_;
  WarpStages stages_;
  int split_, first_channel_;
  float grads_[kLive][kColumns], sums_[kSums];
};

}  // namespace fusedsc::gpu::hopper
