/// Depthwise convolution of contiguous tensors on Hopper GPUs, input gradient at stride 2, for windows with as much
/// padding as keeps the size. Input-centric (Wang et al., DSXplore, section IV-B): the rows of grad_y that cover two
/// rows of grad_x are in registers, and a lane's columns of grad_x begin where its vectors do. (At stride 1 it is a
/// forward pass.)
#pragma once

#include "fusedsc/forward/depthwise/planes/depthwise_planes_copies.h"
#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

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
      : p_(p),
        warp_(uniform(thread_index() / 32)),
        stages_(p.warps, warp_, p.stages * p.stage_bytes, p.stages),
        lane_(p) {
    pitch_ = (p.strip_rows >= p.output_height ? p.output_height : p.strip_rows) * p.output_width;
    inside_ = columns_inside<kLeft, kColumns, kRight>(lane_.column, p.output_width);
  }

  FUSEDSC_DEVICE T* stage(int slot) const { return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes); }

  FUSEDSC_DEVICE void loop() {
    PlanesCursor at(p_, first_plane(p_, warp_), p_.item_step, p_.planes, p_.output_height), ahead = at;
    const auto copies = [&](const PlanesCursor& next, int slot) {
      return copies_of_tile(stages_.barriers + slot, stage(slot), pitch_, static_cast<const T*>(p_.grad_y), next.tile(),
                            p_.output_height, p_.output_width);
    };
    start_first_tiles(stages_, ahead, copies);
    stages_.work_off(at, ahead, starter_of(copies), [&](const PlanesCursor& now, int slot) {
      const PlanesTile tile = now.tile();
#pragma unroll 1
      for (int plane = lane_.side; plane < tile.count; plane += p_.side_planes) {
        if (lane_.has_work) run_rows(tile, tile.plane + plane, stage(slot) + plane * pitch_);
      }
    });
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
    row += lane_.column;
    T* to = static_cast<T*>(p_.grad_x) + plane * (static_cast<std::int64_t>(p_.input_height) * p_.input_width) +
            static_cast<std::int64_t>(tile.row * kStride - kReach) * p_.input_width + lane_.column * kStride;
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
  const int warp_;
  const WarpStages stages_;
  const PlanesLane<kColumns> lane_;
  int pitch_;
  unsigned inside_;
  float weights_[kKernel * kKernel], grads_[kLive][kGrads];
};

}  // namespace fusedsc::gpu::hopper
