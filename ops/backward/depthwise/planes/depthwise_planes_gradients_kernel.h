/// Depthwise convolution of contiguous tensors on Hopper GPUs, gradients of x, the weight and the bias at once, for 3x3
/// windows at stride 1 with as much padding as keeps the size. Input-centric (Wang et al., DSXplore, section IV-B):
/// the rows of grad_y around an element of x are in registers, through their prologue, and make its gradient and its
/// share of the weight's. A warp has the same channels of some images, and all their sums in registers. Gradients take
/// the place of x in shared memory, and leave by TMA.
#pragma once

#include "fusedsc/forward/depthwise/planes/depthwise_planes_copies.h"
#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

namespace fusedsc::gpu::hopper {

struct DepthwisePlanesGradientsParameters : DepthwisePlanesShape {
  const void *x = nullptr, *grad_y = nullptr, *output = nullptr;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  ConstDeviceTensor weight;
  void* grad_x = nullptr;
  float* partials = nullptr;  ///< [split][tap..., bias][channel]
  DepthwisePlanesGroups groups;
  int grad_pitch = 0;  ///< in elements, from a plane of grad_y, or of output, to the next in a stage
};

/// kColumns: per lane. kHasOutput: with a gradient prologue.
template <class T, int kColumns, int kDilation, bool kHasOutput>
class DepthwisePlanesGradients {
 public:
  static constexpr int kKernel = 3, kTaps = kKernel * kKernel, kRows = kTaps + 1;

  FUSEDSC_DEVICE static void run(const DepthwisePlanesGradientsParameters& p) {
    DepthwisePlanesGradients planes(p);
    planes.loop();
    planes.leave_sums();
  }

 private:
  static constexpr int kReach = kDilation, kLive = 2 * kReach + 1;  ///< rows of grad_y from the oldest to the newest
  static constexpr int kGrads = kColumns + 2 * kReach;
  using Row = float[kGrads];

  FUSEDSC_DEVICE explicit DepthwisePlanesGradients(const DepthwisePlanesGradientsParameters& p)
      : p_(p),
        stages_(p.warps, uniform(thread_index() / 32), p.stages * p.stage_bytes, p.stages),
        lane_(p),
        share_(p, p.groups, uniform(thread_index() / 32)) {
    pitch_ = (p.strip_rows >= p.input_height ? p.input_height : p.strip_rows) * p.input_width;
    inside_ = columns_inside<kReach, kColumns, kReach>(lane_.column, p.input_width);
    has_work_ = lane_.has_work && share_.first_channel + lane_.side < p.channels;
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums_[i] = 0;
  }

  FUSEDSC_DEVICE T* stage(int slot) const { return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes); }
  FUSEDSC_DEVICE T* grad_stage(int slot) const {
    return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes + p_.other_place);
  }
  /// Rows of grad_y that a tile wants.
  FUSEDSC_DEVICE static int first_grad_row(const PlanesTile& tile) { return tile.row > kReach ? tile.row - kReach : 0; }
  FUSEDSC_DEVICE int end_grad_row(const PlanesTile& tile) const {
    const int end = tile.row + tile.rows + kReach;
    return end < p_.input_height ? end : p_.input_height;
  }

  FUSEDSC_DEVICE auto copies_of(const PlanesTile& tile, int slot) const {
    const int height = p_.input_height, width = p_.input_width;
    const int first = first_grad_row(tile), end = end_grad_row(tile);
    T* const grad = grad_stage(slot);
    Barrier* const barrier = stages_.barriers + slot;
    const PlanesCopy<T> x(stage(slot), pitch_, static_cast<const T*>(p_.x), tile, tile.row, tile.row + tile.rows,
                          height, width),
        grads(grad, p_.grad_pitch, static_cast<const T*>(p_.grad_y), tile, first, end, height, width);
    if constexpr (kHasOutput) {
      return PlanesCopies<T, 3>{barrier,
                                {x,
                                 grads,
                                 {grad + p_.planes * p_.grad_pitch, p_.grad_pitch, static_cast<const T*>(p_.output),
                                  tile, first, end, height, width}}};
    } else {
      return PlanesCopies<T, 2>{barrier, {x, grads}};
    }
  }

  FUSEDSC_DEVICE void loop() {
    PlanesCursor at = share_.cursor(p_, p_.groups, p_.input_height), ahead = at;
    const auto copies = [&](const PlanesCursor& next, int slot) { return copies_of(next.tile(), slot); };
    start_first_tiles(stages_, ahead, copies);
    load_coefficients(has_work_ ? share_.first_channel + lane_.side : share_.first_channel);
    stages_.work_off(at, ahead, starter_of(copies), [&](const PlanesCursor& now, int slot) {
      const PlanesTile tile = now.tile();
      run_rows(tile, slot);
      publish();
      warp_barrier();
      if (stages_.is_leader) {
        store_rows(tile, stage(slot));
        commit_stores();
        wait_for_stores();
      }
    });
  }

  FUSEDSC_DEVICE void run_rows(const PlanesTile& tile, int slot) {
    const int width = p_.input_width, side = has_work_ ? lane_.side : 0;
    T* x = stage(slot) + side * pitch_ + lane_.column;
    const T* grad = grad_stage(slot) + side * p_.grad_pitch + lane_.column;
    Row g[kLive];  // number (row + kReach) % kLive of the tile's
#pragma unroll
    for (int i = 0; i < kLive - 1; ++i) {
      const int row = tile.row - kReach + i;
      read_gradients(g[i], grad, row);
      if (row >= 0) grad += width;
    }
    int row = 0;
#pragma unroll 1
    while (row < tile.rows) {
#pragma unroll
      for (int i = 0; i < kLive; ++i) {
        if (row >= tile.rows) continue;
        read_gradients(g[(i + kLive - 1) % kLive], grad, tile.row + row + kReach);
        grad += width;
        add_row(g, i, x);
        x += width;
        ++row;
      }
    }
  }

  /// A row of grad_y through the prologue; outside of the image there are zeros.
  FUSEDSC_DEVICE void read_gradients(Row& g, const T* from, int row) const {
    const bool exists = row >= 0 && row < p_.input_height;
    if (!exists) {
#pragma unroll
      for (int c = 0; c < kGrads; ++c) g[c] = 0;
      return;
    }
    load<kColumns>(from).widen(g + kReach);
    if constexpr (kHasOutput) {
      float output[kColumns];
      load<kColumns>(from + p_.planes * p_.grad_pitch).widen(output);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        g[kReach + c] = g[kReach + c] * grad_scale_ + (output[c] * output_scale_ + offset_);
      }
    }
    // The lanes beside have the columns beside.
    const int lane = thread_index() % 32;
#pragma unroll
    for (int c = 0; c < kReach; ++c) {
      const int distance = (kReach - c + kColumns - 1) / kColumns, place = c + distance * kColumns;
      const float left = from_lane(g[place], lane - distance);
      const int right_distance = (c + kColumns) / kColumns, right_place = kReach + c % kColumns;
      const float right = from_lane(g[right_place], lane + right_distance);
      g[c] = (inside_ >> c & 1u) != 0 ? left : 0;
      g[kReach + kColumns + c] = (inside_ >> (kReach + kColumns + c) & 1u) != 0 ? right : 0;
    }
  }

  /// A row of x, with the rows of grad_y around it, of which number `oldest` is the first.
  FUSEDSC_DEVICE void add_row(const Row (&g)[kLive], int oldest, T* row) {
    float x[kColumns], result[kColumns];
    load<kColumns>(row).widen(x);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float sum = 0;
#pragma unroll
      for (int kh = 0; kh < kKernel; ++kh) {
        const Row& grads = g[(oldest + kDilation * (kKernel - 1 - kh)) % kLive];
#pragma unroll
        for (int kw = 0; kw < kKernel; ++kw) {
          const float grad = grads[c + kDilation * (kKernel - 1 - kw)];
          sum += grad * weights_[kh * kKernel + kw];
          sums_[kh * kKernel + kw] += grad * x[c];
        }
      }
      sums_[kTaps] += g[(oldest + kReach) % kLive][kReach + c];
      result[c] = sum;
    }
    if (has_work_) store<kColumns>(result, row);
  }

  FUSEDSC_DEVICE void load_coefficients(int channel) {
    load_weights<T, kKernel, kKernel, 1>(p_.weight, channel, weights_);
    if constexpr (kHasOutput) {
      grad_scale_ = p_.grad_scale[channel];
      output_scale_ = p_.output_scale[channel];
      offset_ = p_.offset[channel];
    }
  }

  /// By one thread.
  FUSEDSC_DEVICE void store_rows(const PlanesTile& tile, const T* from) const {
    const std::int64_t plane_size = static_cast<std::int64_t>(p_.input_height) * p_.input_width;
    T* to = static_cast<T*>(p_.grad_x) + tile.plane * plane_size + tile.row * p_.input_width;
    const int bytes = tile.rows * p_.input_width * static_cast<int>(sizeof(T));  // of a plane
    if (tile.rows == p_.input_height) {
      start_store(to, from, tile.count * bytes);
      return;
    }
    for (int i = 0; i < tile.count; ++i) start_store(to + i * plane_size, from + i * pitch_, bytes);
  }

  FUSEDSC_DEVICE void leave_sums() const {
    leave_plane_sums(p_, share_, p_.groups.splits, sums_, reinterpret_cast<float*>(stages_.memory), p_.partials);
  }

  const DepthwisePlanesGradientsParameters& p_;
  const WarpStages stages_;
  const PlanesLane<kColumns> lane_;
  const PlanesShare share_;
  bool has_work_;
  int pitch_;  ///< in elements, from a plane of x to the next in a stage
  unsigned inside_;
  float weights_[kTaps], grad_scale_ = 1, output_scale_ = 0, offset_ = 0, sums_[kRows];
};

}  // namespace fusedsc::gpu::hopper
