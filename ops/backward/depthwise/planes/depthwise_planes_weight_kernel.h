/// Depthwise convolution of contiguous tensors on Hopper GPUs, weight and bias gradients alone, for windows with as
/// much padding as keeps the size. A warp has the same channels of some images, and all their sums in registers; a row
/// of x meets the rows of grad_y whose windows cover it, which are there too.
#pragma once

#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_sum.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_copies.h"

namespace fusedsc::gpu::hopper {

struct DepthwisePlanesWeightParameters : DepthwisePlanesShape {
  const void *x = nullptr, *grad_y = nullptr;
  DepthwiseWeightSums sums;
  DepthwisePlanesGroups groups;
  int grad_pitch = 0;  ///< in elements, from a plane of grad_y to the next in a stage
};

/// kColumns: of grad_y, per lane.
template <class T, int kKernel, int kStride, int kColumns>
class DepthwisePlanesWeight {
 public:
  static constexpr int kReach = kKernel / 2, kLive = (kKernel - 1) / kStride + 1, kRows = kKernel * kKernel + 1;

  FUSEDSC_DEVICE static void run(const DepthwisePlanesWeightParameters& p) {
    DepthwisePlanesWeight planes(p);
    planes.loop();
    if (p.sums.partials != nullptr) let_next_kernel_start();
    planes.leave_sums();
  }

 private:
  static constexpr int kVector = kColumns * kStride, kRight = kKernel - kReach - kStride,
                       kInputs = kReach + kVector + kRight;

  FUSEDSC_DEVICE explicit DepthwisePlanesWeight(const DepthwisePlanesWeightParameters& p)
      : p_(p),
        warp_(uniform(thread_index() / 32)),
        stages_(p.warps, warp_, p.stages * p.stage_bytes, p.stages),
        share_(p, p.groups, warp_, true) {
    const int lane = thread_index() % 32;
    pitch_ = (p.strip_rows >= p.input_height ? p.input_height : p.strip_rows) * p.input_width;
    const int side = lane / p.lanes;
    has_work_ = side < p.planes && share_.first_channel + side < p.channels;
    const int column = lane % p.lanes * kColumns;
    inside_ = columns_inside<kReach, kVector, kRight>(column * kStride, p.input_width);
    place_ = side * pitch_ + column * kStride;
    grad_place_ = side * p.grad_pitch + column;
    if (p.strip_rows >= p.input_height) {  // those of all images, which are whole runs, have the same
      place_ += skew_of<T>(share_.first_channel, p.input_height * p.input_width);
      grad_place_ += skew_of<T>(share_.first_channel, p.output_height * p.output_width);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums_[i] = 0;
#pragma unroll
    for (int i = 0; i < kLive * kColumns; ++i) grads_[i / kColumns][i % kColumns] = 0;
  }

  /// Of x, and what lies beside it in a stage.
  FUSEDSC_DEVICE T* stage(int slot) const { return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes); }
  FUSEDSC_DEVICE T* grad_stage(int slot) const {
    return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes + p_.other_place);
  }

  /// The first row of grad_y that a tile of x from `row` on brings.
  FUSEDSC_DEVICE static int first_grad_row(int row) { return row == 0 ? 0 : (row + kReach + kStride - 1) / kStride; }
  FUSEDSC_DEVICE int end_grad_row(const PlanesTile& tile) const {
    const int end = (tile.row + tile.rows - 1 + kReach) / kStride + 1;
    return end < p_.output_height ? end : p_.output_height;
  }

  FUSEDSC_DEVICE PlanesCopies<T, 2> copies_of(const PlanesTile& tile, int slot) const {
    const int end = tile.row + tile.rows;
    return {stages_.barriers + slot,
            {{stage(slot), pitch_, static_cast<const T*>(p_.x), tile, tile.row, end, p_.input_height, p_.input_width},
             {grad_stage(slot), p_.grad_pitch, static_cast<const T*>(p_.grad_y), tile, first_grad_row(tile.row),
              end_grad_row(tile), p_.output_height, p_.output_width}}};
  }

  FUSEDSC_DEVICE void loop() {
    PlanesCursor at = share_.cursor(p_, p_.groups, p_.input_height), ahead = at;
    const auto copies = [&](const PlanesCursor& next, int slot) { return copies_of(next.tile(), slot); };
    start_first_tiles(stages_, ahead, copies);
    stages_.work_off(at, ahead, starter_of(copies),
                     [&](const PlanesCursor& now, int slot) { run_rows(now.tile(), stage(slot), grad_stage(slot)); });
  }

  FUSEDSC_DEVICE void run_rows(const PlanesTile& tile, const T* stage, const T* grad) {
    if (!has_work_) return;
    grad += grad_place_;
    const int first = tile.row == 0 ? -kReach : tile.row;  // rows before the image bring rows of grad_y
    const T* row = stage + place_ + (first - tile.row) * p_.input_width;
#pragma unroll 1
    for (int r = first; r < tile.row + tile.rows; ++r) {
      const bool is_new = (r + kReach) % kStride == 0;
      if (is_new) {
#pragma unroll
        for (int age = kLive - 1; age > 0; --age) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) grads_[age][c] = grads_[age - 1][c];
        }
        if ((r + kReach) / kStride < p_.output_height) {
          load<kColumns>(grad).widen(grads_[0]);
          grad += p_.output_width;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) sums_[kRows - 1] += grads_[0][c];
        } else {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) grads_[0][c] = 0;
        }
        if (r == -kReach) {  // what is older is of other planes
#pragma unroll
          for (int i = kColumns; i < kLive * kColumns; ++i) grads_[i / kColumns][i % kColumns] = 0;
        }
      }
      if (r >= 0) {
        float x[kInputs];
        load_columns<T, kReach, kVector, kRight>(row, inside_, x);
        if (is_new) add<0>(x);
        else add<kStride - 1>(x);
      }
      row += p_.input_width;
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

  FUSEDSC_DEVICE void leave_sums() const {
    const auto row = static_cast<std::int64_t>(share_.split / p_.warps) * kRows;
    leave_block_sums(p_, sums_, stages_, warp_, [&](int side, int tap, float sum) {
      const int channel = share_.first_channel + side;
      if (channel >= p_.channels) return;
      if (p_.sums.partials == nullptr) leave_gradient<T, kKernel>(p_.sums, tap, channel, sum);
      else p_.sums.partials[(row + tap) * p_.channels + channel] = sum;
    });
  }

  const DepthwisePlanesWeightParameters& p_;
  const int warp_;
  const WarpStages stages_;
  const PlanesShare share_;
  bool has_work_;
  int pitch_;
  int place_, grad_place_;  ///< of the lane: its first elements in a stage
  unsigned inside_;
  float grads_[kLive][kColumns], sums_[kRows];
};

}  // namespace fusedsc::gpu::hopper
