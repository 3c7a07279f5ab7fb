/// Depthwise convolution of contiguous tensors on Hopper GPUs, input gradient at stride 2, for windows with as much
/// padding as keeps the size. Input-centric (seed 004, section IV-C): the rows of grad_y that cover two rows of grad_x
/// are in registers, and a lane's columns of grad_x begin where its vectors do. (At stride 1 it is a forward pass.)
#pragma once

#include "fusedsc/common/gpu/depthwise_planes.h"
#include "fusedsc/common/gpu/depthwise_source.h"
#include "fusedsc/common/gpu/following_kernel.h"

namespace fusedsc::gpu::hopper {

struct DepthwisePlanesInputParameters : DepthwisePlanesShape {
  const void* grad_y = nullptr;
  ConstDeviceTensor weight;
  void* grad_x = nullptr;
};

/// kColumns: of grad_y, per lane.
template <class T, int kKernel, int kColumns>
class DepthwisePlanesInput {
 public:
  FUSEDSC_DEVICE static void run(const DepthwisePlanesInputParameters& p) {
    DepthwisePlanesInput planes(p);
    planes.loop();
  }

 private:
  static constexpr int kStride = 2, kReach = kKernel / 2, kLive = kReach + 1;  ///< rows of grad_y that cover a row
  static constexpr int kLeft = kKernel / 4, kRight = 1, kGrads = kLeft + kColumns + kRight;

  FUSEDSC_DEVICE explicit DepthwisePlanesInput(const DepthwisePlanesInputParameters& p)
      : p_(p), stages_(p.warps, uniform(thread_index() / 32), p.stages * p.stage_bytes, p.stages) {
    const int warp = uniform(thread_index() / 32), lane = thread_index() % 32;
    is_leader_ = lane == 0;
    pitch_ = (p.strip_rows >= p.output_height ? p.output_height : p.strip_rows) * p.output_width;
    side_ = lane / p.lanes;
    has_work_ = side_ < p.side_planes;
    column_ = lane % p.lanes * kColumns;
    inside_ = columns_inside<kLeft, kColumns, kRight>(column_, p.output_width);
    first_ = (static_cast<std::int64_t>(block_index()) * p.warps + warp) * p.first_step;
  }

  FUSEDSC_DEVICE T* stage(int slot) const { return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes); }

  FUSEDSC_DEVICE void start_copies(PlanesCursor& ahead, int slot) const {
    if (!ahead.exists()) return;
    if (is_leader_) {
      const PlanesTile tile = ahead.tile();
      expect(stages_.barriers + slot, tile.count * tile.rows * p_.output_width * static_cast<int>(sizeof(T)));
      start_rows(stage(slot), pitch_, static_cast<const T*>(p_.grad_y), tile, tile.row, tile.row + tile.rows,
                 p_.output_height, p_.output_width, stages_.barriers + slot);
    }
    ahead.next();
  }

  FUSEDSC_DEVICE void loop() {
    stages_.start(is_leader_, p_.stages);
    wait_for_previous_kernel();
    let_next_kernel_start();
    PlanesCursor at(p_, first_, p_.item_step, p_.planes, p_.output_height), ahead = at;
    for (int i = 0; i < p_.stages; ++i) start_copies(ahead, i);
    int slot = 0, parity = 0;
#pragma unroll 1
    while (at.exists()) {
      wait(stages_.barriers + slot, parity);
      const PlanesTile tile = at.tile();
#pragma unroll 1
      for (int plane = 0; plane < tile.count; plane += p_.side_planes) {
        if (has_work_ && plane + side_ < tile.count)
          run_rows(tile, tile.plane + plane + side_, stage(slot) + (plane + side_) * pitch_);
      }
      warp_barrier();
      start_copies(ahead, slot);
      if (++slot == p_.stages) {
        slot = 0;
        parity ^= 1;
      }
      at.next();
    }
  }

  FUSEDSC_DEVICE void run_rows(const PlanesTile& tile, std::int64_t plane, const T* row) {
    if (tile.row == 0) {
      std::uint32_t channel = static_cast<std::uint32_t>(plane);
      p_.by_channels.divide(channel);
      load_weights<T, kKernel, kKernel, 1>(p_.weight, static_cast<int>(channel), weights_);
#pragma unroll
      for (int i = 0; i < kLive * kGrads; ++i) grads_[i / kGrads][i % kGrads] = 0;
    }
    const bool is_last = tile.row + tile.rows == p_.output_height;
    const int end = is_last ? (p_.input_height - 1 + kReach) / kStride + 1 : tile.row + tile.rows;
    row += column_;
    T* to = static_cast<T*>(p_.grad_x) + plane * (static_cast<std::int64_t>(p_.input_height) * p_.input_width) +
            static_cast<std::int64_t>(tile.row * kStride - kReach) * p_.input_width + column_ * kStride;
#pragma unroll 1
    for (int r = tile.row; r < end; ++r) {
#pragma unroll
      for (int age = kLive - 1; age > 0; --age) {
#pragma unroll
        for (int c = 0; c < kGrads; ++c) grads_[age][c] = grads_[age - 1][c];
      }
      if (r < p_.output_height) {
        load_columns<T, kLeft, kColumns, kRight>(row, inside_, grads_[0]);
      } else {
#pragma unroll
        for (int c = 0; c < kGrads; ++c) grads_[0][c] = 0;
      }
      row += p_.output_width;
#pragma unroll
      for (int e = 0; e < kStride; ++e) {
        const int h = r * kStride - kReach + e;
        if (h >= 0 && h < p_.input_height) finish(e, to);
        to += p_.input_width;
      }
    }
  }

  /// Row e of the two that all their rows of grad_y are there for now.
  FUSEDSC_DEVICE void finish(int e, T* to) const {
    float result[kColumns * kStride];
#pragma unroll
    for (int c = 0; c < kColumns * kStride; ++c) {
      const int place = (c + kReach) / kStride, f = (c + kReach) % kStride;  // of the newest column of grad_y
      float sum = 0;
#pragma unroll
      for (int age = 0; age < kLive; ++age) {
        const int kh = e + age * kStride;
        if (kh >= kKernel) continue;
#pragma unroll
        for (int back = 0; back < kLive; ++back) {
          const int kw = f + back * kStride;
          if (kw >= kKernel) continue;
          sum += grads_[age][kLeft + place - back] * weights_[kh * kKernel + kw];
        }
      }
      result[c] = sum;
    }
    store<kColumns * kStride>(result, to);
  }

  const DepthwisePlanesInputParameters& p_;
  const WarpStages stages_;
  bool is_leader_, has_work_;
  int pitch_;
  int side_, column_;  ///< of the lane: its plane, its first column of grad_y
  unsigned inside_;
  std::int64_t first_;
  float weights_[kKernel * kKernel], grads_[kLive][kGrads];
};

}  // namespace fusedsc::gpu::hopper
