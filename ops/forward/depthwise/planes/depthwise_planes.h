/// What the depthwise kernels for contiguous tensors on Hopper GPUs share: each warp has its own tiles, some rows of a
/// few planes (channels of images), and its own copies of them under way, and waits for no other. Neighbouring lanes
/// have neighbouring columns of a plane, as many lanes per plane as its rows are long, and go down its rows.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/least.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/forward/depthwise/hopper/warp_stages.h"

namespace fusedsc::gpu::hopper {

struct DepthwisePlanesShape {
  int channels = 0, input_height = 0, input_width = 0, output_height = 0, output_width = 0;
  int lanes = 1;                               ///< of a warp, that share a plane
  int side_planes = 1;                         ///< planes that a warp has side by side
  int planes = 1;                              ///< of a tile, a multiple of them
  int strip_rows = 1;                          ///< of a tile, all of a plane's or a part of them
  int stages = 2;                              ///< tiles under way
  int warps = 1, blocks = 1;                   ///< of a block; of the launch
  int stage_bytes = 0, other_place = 0;        ///< the latter: of what comes with a tile's rows, in a stage
  std::int64_t first_step = 0, item_step = 0;  ///< planes from a warp's first item to the next warp's; to its own next
  std::int64_t all_planes = 0;
  Divisor by_channels;

  FUSEDSC_HOST_DEVICE int memory_bytes() const { return WarpStages::block_bytes(warps, stages * stage_bytes, stages); }
};

/// Some rows of some planes; `first`: of x, and `begin`: of y, where the part of the planes that it is of begins.
struct PlanesTile {
  std::int64_t plane;
  int count, row, rows, first = 0, begin = 0;
};

/// A warp's tiles, one after the other: planes from first_plane on and each `step` further, of `height` rows.
class PlanesCursor {
 public:
  FUSEDSC_DEVICE PlanesCursor(const DepthwisePlanesShape& p, std::int64_t plane, std::int64_t step, int most,
                              int height)
      : p_(p), plane_(plane), step_(step), most_(most), height_(height) {}
  FUSEDSC_DEVICE bool exists() const { return plane_ < p_.all_planes; }
  FUSEDSC_DEVICE PlanesTile tile() const {
    const std::int64_t left = p_.all_planes - plane_;
    const int rows = height_ - row_ < p_.strip_rows ? height_ - row_ : p_.strip_rows;
    return {plane_, left < most_ ? static_cast<int>(left) : most_, row_, rows};
  }
  FUSEDSC_DEVICE void next() {
    row_ += p_.strip_rows;
    if (row_ < height_) return;
    row_ = 0;
    plane_ += step_;
  }

 private:
  const DepthwisePlanesShape& p_;
  std::int64_t plane_, step_;
  int most_, height_, row_ = 0;
};

/// How planes are divided between warps where there are few of them: parts of so many rows of y.
struct DepthwisePlanesParts {
  int count = 1, rows = 1;
  Divisor by_count;
};

/// A warp's tiles, one after the other, of x, of parts of planes: item `item`, and each `step` further. kReach: rows of
/// x beside a window's middle.
template <int kStride, int kReach>
class PlanesPartsCursor {
 public:
  FUSEDSC_DEVICE PlanesPartsCursor(const DepthwisePlanesShape& p, const DepthwisePlanesParts& parts, std::uint32_t item)
      : p_(p), parts_(parts), item_(item) {
    begin_part();
  }
  FUSEDSC_DEVICE bool exists() const { return tile_.plane < p_.all_planes; }
  FUSEDSC_DEVICE PlanesTile tile() const { return tile_; }
  FUSEDSC_DEVICE void next() {
    tile_.row += p_.strip_rows;
    if (tile_.row < end_) {
      tile_.rows = least(end_ - tile_.row, p_.strip_rows);
      return;
    }
    item_ += static_cast<std::uint32_t>(p_.warps * p_.blocks);
    begin_part();
  }

 private:
  FUSEDSC_DEVICE void begin_part() {
    std::uint32_t part = item_;
    tile_.plane = static_cast<std::int64_t>(parts_.by_count.divide(part)) * p_.planes;
    const std::int64_t left = p_.all_planes - tile_.plane;
    tile_.count = left < p_.planes ? static_cast<int>(left) : p_.planes;
    tile_.begin = static_cast<int>(part) * parts_.rows;
    const int first = tile_.begin * kStride - kReach, end = (tile_.begin + parts_.rows - 1) * kStride + kReach + 1;
    tile_.first = tile_.row = first > 0 ? first : 0;
    end_ = static_cast<int>(part) + 1 == parts_.count ? p_.input_height : end;
    tile_.rows = least(end_ - tile_.row, p_.strip_rows);
  }

  const DepthwisePlanesShape& p_;
  const DepthwisePlanesParts& parts_;
  std::uint32_t item_;
  int end_ = 0;
  PlanesTile tile_{};
};

/// Where sums of channels are wanted: warps have the same channels of some images each, so that a lane keeps its sums.
struct DepthwisePlanesGroups {
  int splits = 1, groups = 1;  ///< of the images; of the channels, a tile's planes each
  Divisor by_groups;
};

/// A warp's share of these. Neighbouring warps have neighbouring channels, or, together: a block's all have the same.
struct PlanesShare {
  int split, first_channel;

  FUSEDSC_DEVICE PlanesShare(const DepthwisePlanesShape& p, const DepthwisePlanesGroups& by, int warp,
                             bool together = false) {
    std::uint32_t group = block_index();
    if (!together) group = group * static_cast<unsigned>(p.warps) + static_cast<unsigned>(warp);
    split = static_cast<int>(by.by_groups.divide(group));
    if (together) split = split * p.warps + warp;
    first_channel = static_cast<int>(group) * p.planes;
  }

  /// Over its tiles; a warp that is left over has none.
  FUSEDSC_DEVICE PlanesCursor cursor(const DepthwisePlanesShape& p, const DepthwisePlanesGroups& by, int height) const {
    const std::int64_t first =
        split < by.splits ? static_cast<std::int64_t>(split) * p.channels + first_channel : p.all_planes;
    const int most = p.channels - first_channel < p.planes ? p.channels - first_channel : p.planes;
    return {p, first, static_cast<std::int64_t>(by.splits) * p.channels, most, height};
  }
};

/// Leaves a warp's sums of some taps in `partials`, [split][tap][channel]: of the lanes of a plane, in their order.
/// memory: of the warp, which is done with it, kTaps * 32 floats.
template <int kTaps>
FUSEDSC_DEVICE void leave_plane_sums(const DepthwisePlanesShape& p, const PlanesShare& share, int splits,
                                     const float (&sums)[kTaps], float* memory, float* partials) {
  const int lane = thread_index() % 32;
  warp_barrier();
#pragma unroll
  for (int i = 0; i < kTaps; ++i) memory[i * 32 + lane] = sums[i];
  warp_barrier();
  if (share.split >= splits) return;
  float* to = partials + static_cast<std::int64_t>(share.split) * kTaps * p.channels + share.first_channel;
  for (int i = lane; i < kTaps * p.planes; i += 32) {
    const int side = i / kTaps, tap = i - side * kTaps;
    if (share.first_channel + side >= p.channels) continue;
    const float* from = memory + tap * 32 + side * p.lanes;
    float sum = 0;
    for (int j = 0; j < p.lanes; ++j) sum += from[j];
    to[static_cast<std::int64_t>(tap) * p.channels + side] = sum;
  }
}

inline constexpr int kPlaneSumsPitch = 33;  ///< lanes of neighbouring taps lie on different banks

/// What leave_block_sums needs of each warp's memory for `rows` sums of a lane.
inline int plane_sums_bytes(const DepthwisePlanesShape& p, int rows) { return (kPlaneSumsPitch + p.planes) * rows * 4; }

/// Where all warps of a block have the same channels: calls leave(plane, tap, sum) with the sums of a tile's planes, of
/// all lanes and warps, in their order. stages: of the warp, which is done with them; plane_sums_bytes of each.
template <int kTaps, class Leave>
FUSEDSC_DEVICE void leave_block_sums(const DepthwisePlanesShape& p, const float (&sums)[kTaps],
                                     const WarpStages& stages, int warp, const Leave& leave) {
  const int thread = thread_index(), lane = thread % 32, all = kTaps * p.planes;
  auto* own = reinterpret_cast<float*>(stages.memory);
  warp_barrier();
#pragma unroll
  for (int i = 0; i < kTaps; ++i) own[i * kPlaneSumsPitch + lane] = sums[i];
  warp_barrier();
  for (int i = lane; i < all; i += 32) {
    const int tap = i / p.planes, side = i - tap * p.planes;
    const float* from = own + tap * kPlaneSumsPitch + side * p.lanes;
    float sum = 0;
    for (int j = 0; j < p.lanes; ++j) sum += from[j];
    own[kTaps * kPlaneSumsPitch + i] = sum;
  }
  block_barrier();
  const int step = p.stages * p.stage_bytes / 4;
  const float* first = own - warp * step + kTaps * kPlaneSumsPitch;
  for (int i = thread; i < all; i += p.warps * 32) {
    float sum = 0;
    for (int j = 0; j < p.warps; ++j) sum += first[j * step + i];
    const int tap = i / p.planes;
    leave(i - tap * p.planes, tap, sum);
  }
}

/// Where a lane is among the planes that its warp has side by side: which of them is its own, and the first of its
/// kColumns columns, of the narrower tensor.
template <int kColumns>
struct PlanesLane {
  int side, column;
  bool has_work;

  FUSEDSC_DEVICE explicit PlanesLane(const DepthwisePlanesShape& p) {
    const int lane = thread_index() % 32;
    side = lane / p.lanes;
    column = lane % p.lanes * kColumns;
    has_work = side < p.side_planes;
    if (!has_work) side = 0;
  }
};

/// The tiles of a warp, whose blocks all share them out: the first plane.
FUSEDSC_DEVICE std::int64_t first_plane(const DepthwisePlanesShape& p, int warp) {
  return (static_cast<std::int64_t>(block_index()) * p.warps + warp) * p.first_step;
}

/// kVector columns of a row, kLeft before and kRight after them, as far as `inside` (a bit per column) has them.
template <class T, int kLeft, int kVector, int kRight>
FUSEDSC_DEVICE void load_columns(const T* row, unsigned inside, Accumulator<T> (&to)[kLeft + kVector + kRight]) {
  load<kVector>(row).widen(to + kLeft);
#pragma unroll
  for (int c = 0; c < kLeft + kVector + kRight; ++c) {
    if (c >= kLeft && c < kLeft + kVector) continue;
    to[c] = (inside >> c & 1u) != 0 ? to_accumulator(row[c - kLeft]) : 0;
  }
}
template <int kLeft, int kVector, int kRight>
FUSEDSC_DEVICE unsigned columns_inside(int column, int width) {
  unsigned inside = 0;
#pragma unroll
  for (int c = 0; c < kLeft + kVector + kRight; ++c) {
    inside |= static_cast<unsigned>(column + c - kLeft) < static_cast<unsigned>(width) ? 1u << c : 0u;
  }
  return inside;
}

}  // namespace fusedsc::gpu::hopper
