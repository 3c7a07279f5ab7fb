/// Depthwise convolution of contiguous tensors on Hopper GPUs, forward, for windows with as much padding as keeps the
/// size. A row of x is loaded once and serves all output rows whose windows cover it. At stride 1 finished rows take
/// the place of rows of x that have served, and leave by TMA. Where statistics are wanted, a warp has the
/// same channels of some images.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_copies.h"
#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

namespace fusedsc::gpu::hopper {

struct DepthwisePlanesParameters : DepthwisePlanesShape {
  const void *x = nullptr, *bias = nullptr;
  ConstDeviceTensor weight;
  void* y = nullptr;
  DepthwisePlanesParts parts;    ///< without statistics
  DepthwisePlanesGroups groups;  ///< with them
  float* partials = nullptr;     ///< [split][mean, m2, count][channel]
};

/// kColumns: of y, per lane. A dilation is for stride 1.
template <class T, int kKernel, int kStride, int kColumns, int kDilation, bool kStatistics>
class DepthwisePlanes {
 public:
  static constexpr bool kInPlace = kStride == 1;
  static constexpr int kExtent = (kKernel - 1) * kDilation + 1;  ///< rows from a window's first to its last, with both
  static constexpr int kReach = kExtent / 2, kKept = (kExtent - 1) / kStride;

  FUSEDSC_DEVICE static void run(const DepthwisePlanesParameters& p) {
    DepthwisePlanes planes(p);
    planes.loop();
    if constexpr (kStatistics) planes.leave_moments();
  }

 private:
  static constexpr int kVector = kColumns * kStride, kRight = kExtent - kReach - kStride,
                       kInputs = kReach + kVector + kRight;
  using Sums = float[kKept][kColumns];
  using Cursor = std::conditional_t<kStatistics, PlanesCursor, PlanesPartsCursor<kStride, kReach>>;

  FUSEDSC_DEVICE explicit DepthwisePlanes(const DepthwisePlanesParameters& p)
      : p_(p),
        warp_(uniform(thread_index() / 32)),
        stages_(p.warps, warp_, p.stages * p.stage_bytes, p.stages),
        lane_(p),
        share_(p, p.groups, warp_) {
    is_whole_ = p.strip_rows >= p.input_height;
    before_ = is_whole_ ? 0 : kReach * p.input_width;
    pitch_ = is_whole_ ? p.input_height * p.input_width : (p.strip_rows + kReach * 2) * p.input_width;
    inside_ = columns_inside<kReach, kVector, kRight>(lane_.column * kStride, p.input_width);
  }

  FUSEDSC_DEVICE T* stage(int slot) const {
    return reinterpret_cast<T*>(stages_.memory + slot * p_.stage_bytes) + before_;
  }

  FUSEDSC_DEVICE Cursor first_tile() const {
    if constexpr (kStatistics) return share_.cursor(p_, p_.groups, p_.input_height);
    else return {p_, p_.parts, block_index() * static_cast<unsigned>(p_.warps) + static_cast<unsigned>(warp_)};
  }

  FUSEDSC_DEVICE void loop() {
    Cursor at = first_tile(), ahead = at;
    const auto copies = [&](const Cursor& next, int slot) {
      return copies_of_tile(stages_.barriers + slot, stage(slot), pitch_, static_cast<const T*>(p_.x), next.tile(),
                            p_.input_height, p_.input_width);
    };
    start_first_tiles(stages_, ahead, copies);
    // A place that finished rows leave from is free when the next tile's leave.
    stages_.template work_off<kInPlace ? 1 : 0>(at, ahead, starter_of(copies), [&](const Cursor& now, int slot) {
      const PlanesTile tile = now.tile();
      T* planes = stage(slot);
#pragma unroll 1
      for (int plane = 0; plane < tile.count; plane += p_.side_planes) run_rows(tile, plane, planes + plane * pitch_);
      if constexpr (kInPlace) {
        publish();
        warp_barrier();
        if (stages_.is_leader) {
          if (!kStatistics || p_.y != nullptr) store_rows(tile, planes);
          commit_stores();
          wait_for_stores<1>();
        }
      }
    });
    if (kInPlace && stages_.is_leader) wait_for_stores();
  }

  /// Rows of y that the tile completes; of those on their way, what the next tile of the planes needs stays in sums_.
  FUSEDSC_DEVICE void run_rows(const PlanesTile& tile, int plane, T* planes) {
    const bool exists = lane_.has_work && plane + lane_.side < tile.count;
    const int side = exists ? lane_.side : 0;
    const std::int64_t own_plane = tile.plane + plane + side;
    if (tile.row == tile.first) {
      std::uint32_t channel = static_cast<std::uint32_t>(own_plane);
      p_.by_channels.divide(channel);
      load_coefficients(static_cast<int>(channel));
#pragma unroll
      for (int i = 0; i < kKept * kColumns; ++i) sums_[i / kColumns][i % kColumns] = bias_;
    }
    const int width = p_.input_width, output_width = p_.output_width;
    T* row = planes + side * pitch_ + lane_.column * kStride;
    T* out = kInPlace ? nullptr
                      : static_cast<T*>(p_.y) +
                            own_plane * (static_cast<std::int64_t>(p_.output_height) * output_width) + lane_.column;
    const bool is_last = tile.row + tile.rows == p_.input_height;
    const int first_counted = tile.begin * kStride + kReach;
    const auto finish = [&](int r, const float(&finished)[kColumns]) {
      const bool counts = exists && r >= first_counted;
      if constexpr (kStatistics) {
        if (counts) moments_.template add<kColumns>(finished, kColumns);
      }
      if constexpr (kInPlace) {
        warp_barrier();
        if (counts) store<kColumns>(finished, row - kReach * width);
      } else {
        const std::int64_t y = (r - kReach) / kStride;
        if (counts && (!kStatistics || p_.y != nullptr)) store<kColumns>(finished, out + y * output_width);
      }
    };
    int r = tile.row;
#pragma unroll 1
    for (; r < tile.row + tile.rows; ++r) {
      float x[kInputs], finished[kColumns];
      load_columns<T, kReach, kVector, kRight>(row, inside_, x);
      if ((r + kReach) % kStride != 0) {
        add<kStride - 1>(x, finished);
      } else {
        add<0>(x, finished);
        finish(r, finished);
      }
      row += width;
    }
    if (!is_last) return;
      // Rows behind the image have nothing to add, but end what is left.
#pragma unroll 1
    for (; r <= (p_.output_height - 1) * kStride + kReach; ++r) {
      float finished[kColumns];
      if ((r + kReach) % kStride == 0) {
        pass(finished);
        finish(r, finished);
      }
      row += width;
    }
  }

  /// A row of x, number kPhase of those that a row of y moves on by, to all rows of y whose windows cover it.
  template <int kPhase>
  FUSEDSC_DEVICE void add(const float (&x)[kInputs], float (&finished)[kColumns]) {
#pragma unroll
    for (int age = kKept; age >= 0; --age) {
      const int row = kPhase + age * kStride, kh = row / kDilation;  // of the window
      if (row >= kExtent) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float sum = kPhase > 0 ? sums_[age][c] : age == 0 ? bias_ : sums_[age - 1][c];
        if (row % kDilation == 0) {
#pragma unroll
          for (int kw = 0; kw < kKernel; ++kw) sum += x[c * kStride + kw * kDilation] * weights_[kh * kKernel + kw];
        }
        if (kPhase == 0 && age == kKept) finished[c] = sum;
        else sums_[age][c] = sum;
      }
    }
  }

  /// Instead of add<0>, where there is no row of x.
  FUSEDSC_DEVICE void pass(float (&finished)[kColumns]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      finished[c] = sums_[kKept - 1][c];
#pragma unroll
      for (int age = kKept - 1; age > 0; --age) sums_[age][c] = sums_[age - 1][c];
    }
  }

  FUSEDSC_DEVICE void load_coefficients(int channel) {
    load_weights<T, kKernel, kKernel, 1>(p_.weight, channel, weights_);
    bias_ = p_.bias != nullptr ? to_accumulator(static_cast<const T*>(p_.bias)[channel]) : 0.0f;
  }

  /// By one thread.
  FUSEDSC_DEVICE void store_rows(const PlanesTile& tile, const T* planes) const {
    T* y = static_cast<T*>(p_.y) + tile.plane * (static_cast<std::int64_t>(p_.input_height) * p_.input_width);
    if (is_whole_) {
      start_store(y, planes, tile.count * p_.input_height * p_.input_width * static_cast<int>(sizeof(T)));
      return;
    }
    const int begin = tile.row - kReach > tile.begin ? tile.row - kReach : tile.begin;
    const int end = tile.row + tile.rows == p_.input_height ? p_.input_height : tile.row + tile.rows - kReach;
    const int bytes = (end - begin) * p_.input_width * static_cast<int>(sizeof(T));
    if (bytes <= 0) return;
    for (int i = 0; i < tile.count; ++i) {
      start_store(y + (static_cast<std::int64_t>(i) * p_.input_height + begin) * p_.input_width,
                  planes + i * pitch_ + (begin - tile.row) * p_.input_width, bytes);
    }
  }

  /// Of the lanes of a plane, in their order.
  FUSEDSC_DEVICE void leave_moments() const {
    auto* memory = reinterpret_cast<float*>(stages_.memory);
    const int lane = thread_index() % 32;
    warp_barrier();  // rows have left
    memory[lane] = moments_.mean(0);
    memory[32 + lane] = moments_.m2(0);
    memory[64 + lane] = moments_.count;
    warp_barrier();
    const int channel = share_.first_channel + lane;
    if (lane >= p_.planes || channel >= p_.channels || share_.split >= p_.groups.splits) return;
    float mean = 0, m2 = 0, count = 0;
    for (int i = lane * p_.lanes; i < (lane + 1) * p_.lanes; ++i) {
      merge_moments(count, mean, m2, memory[64 + i], memory[i], memory[32 + i]);
    }
    float* row = p_.partials + static_cast<std::int64_t>(share_.split) * 3 * p_.channels + channel;
    row[0] = mean;
    row[p_.channels] = m2;
    row[2 * p_.channels] = count;
  }

  const DepthwisePlanesParameters& p_;
  const int warp_;
  const WarpStages stages_;
  const PlanesLane<kColumns> lane_;
  const PlanesShare share_;
  bool is_whole_;
  int before_, pitch_;  ///< elements before a plane's rows, for finished ones; from a plane to the next
  unsigned inside_;
  float weights_[kKernel * kKernel], bias_ = 0;
  Sums sums_;
  ShiftedMoments<float, 1> moments_;
};

}  // namespace fusedsc::gpu::hopper
