/// Weight gradient of a sliding-channel convolution of contiguous float tensors by TensorFloat-32. A tile is 32 rows of
/// a banded weight by 32 values of its depth; a block has some tiles, one to a warp, of the positions that it goes
/// over; slices of warps that have the same tiles take neighbouring positions.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_sum.h"
#include "fusedsc/forward/sliding_channel/planes/sliding_planes.h"

namespace fusedsc::gpu {

/// Tiles of a banded weight's gradient, and where their sums go (pointwise_hopper_weight_sum.h). A block has
/// `block_rows` times 32 rows, and of what each wants `block_slots` times 32 values of k.
struct SlidingTiles {
  static constexpr int kSize = 32, kEights = kSize / SlidingBands::kEight;

  SlidingBands bands;
  int outputs = 0, channels = 0;  ///< rows and depth
  int block_rows = 1, block_slots = 1;
  int slot_groups = 1, groups = 1;  ///< of slots, of a row of tiles; of all tiles
  Divisor by_slot_groups, by_slots;
  hopper::Four* partials = nullptr;  ///< [split][group][tile][four]
  float* bias_partials = nullptr;
  float *weight = nullptr, *bias = nullptr;
  std::int64_t filter = 0, channel = 0;  ///< strides

  SlidingTiles() = default;
  SlidingTiles(const SlidingBands& bands_, int block_rows_, int block_slots_)
      : bands(bands_),
        outputs(bands.rows()),
        channels(bands.depth()),
        block_rows(block_rows_),
        block_slots(block_slots_),
        slot_groups((slots() + block_slots - 1) / block_slots),
        groups((bands.rows() / kSize + block_rows - 1) / block_rows * slot_groups),
        by_slot_groups(static_cast<std::uint32_t>(slot_groups)),
        by_slots(static_cast<std::uint32_t>(block_slots)) {}

  /// Of a row of tiles.
  int slots() const { return (bands.most(kSize) + kEights - 1) / kEights; }
  FUSEDSC_HOST_DEVICE int tiles() const { return block_rows * block_slots; }
  FUSEDSC_HOST_DEVICE int fours_of_tile() const { return tiles() * kSize * kSize / 4; }
  FUSEDSC_HOST_DEVICE int fours() const { return groups * fours_of_tile(); }

  /// Where a group's tiles begin: the first row, and what of its band.
  struct Place {
    int row, eight;
  };
  FUSEDSC_HOST_DEVICE Place group(int number) const {
    auto slot = static_cast<std::uint32_t>(number);
    const auto own = static_cast<int>(by_slot_groups.divide(slot));
    return {own * block_rows * kSize, static_cast<int>(slot) * block_slots * kEights};
  }
  /// Of a row of tiles, where the group's part of its band begins.
  FUSEDSC_HOST_DEVICE int begin(int row, int eight) const {
    const int sum = bands.band(row < outputs ? row : 0, kSize).begin + eight;
    return sum % bands.eights();
  }
  /// The eights that a group reads, from begin() of its first row on.
  FUSEDSC_HOST_DEVICE int eights(const Place& place) const {
    const int all = bands.eights(), last = place.row + (block_rows - 1) * kSize;
    const int first = begin(place.row, place.eight), end = begin(last < outputs ? last : outputs - kSize, place.eight);
    const int count = end - first + (end < first ? all : 0) + block_slots * kEights;
    return count < all ? count : all;
  }
  /// The most of any group.
  int most_eights() const {
    int most = 0;
    for (int number = 0; number < groups; number += slot_groups) most = std::max(most, eights(group(number)));
    return most;
  }

  /// Of a four: [tile][16 rows][8 values of k][lane]: two values of k, 4 apart, of a row and of that 8 further.
  FUSEDSC_DEVICE hopper::WeightPlace place_of(int number, int four) const {
    const Place from = group(number);
    const int lane = four % 32, fragment = four / 32 % 8;
    auto slot = static_cast<std::uint32_t>(four / 256);
    const int row = from.row + static_cast<int>(by_slots.divide(slot)) * kSize;
    int eight = begin(row, from.eight) + static_cast<int>(slot) * kEights + fragment % 4;
    if (eight >= bands.eights()) eight -= bands.eights();
    return {row + fragment / 4 * 16 + row_of(lane / 4), eight * 8 + lane % 4};
  }
  FUSEDSC_DEVICE bool is_wanted(const hopper::WeightPlace&) const { return true; }

  template <class T>
  FUSEDSC_DEVICE void store_sum(const hopper::WeightPlace& place, const hopper::Four& sum, T) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = place.output + i / 2 * 8, k = place.channel + i % 2 * 4, own = bands.place(row, k);
      if (own < bands.lines.width) weight[bands.filter(row, k) * filter + own * channel] = sum.elements[i];
    }
  }

  /// Of eight rows of shared memory, which one an instruction's row or column is: 0 and 1 are four apart, so that
  /// threads that read them at the same time meet different banks.
  FUSEDSC_DEVICE static int row_of(int g) { return g / 2 + g % 2 * 4; }
};

struct SlidingWeightParameters {
  SlidingTiles tiles;
  PlanePieces pieces;
  PlanesOfImages rows, depth;
  int slices = 1, splits = 1;
  int steps = 0;        ///< of 32 positions for each slice
  int stage_bytes = 0;  ///< of all slices
};

template <int kWarps, int kStages>
class SlidingWeightProduct {
 public:
  static constexpr int kThreads = 32 * kWarps;

  static int memory_bytes(const SlidingTiles& tiles, int slices) {
    const int rows = tiles.block_rows * SlidingTiles::kSize + tiles.most_eights() * 8;
    return std::max(kStages * slices * rows * kGroupBytes, kWarps * kTileBytes) + rows * 4;
  }
  static int stage_bytes(const SlidingTiles& tiles, int slices) {
    return slices * (tiles.block_rows * SlidingTiles::kSize + tiles.most_eights() * 8) * kGroupBytes;
  }

  FUSEDSC_DEVICE static void run(const SlidingWeightParameters& p) {
    SlidingWeightProduct product(p);
    product.loop();
  }

 private:
  static constexpr int kTileBytes = SlidingTiles::kSize * SlidingTiles::kSize * 4;
  using Sums = float[2][4][4];

  FUSEDSC_DEVICE explicit SlidingWeightProduct(const SlidingWeightParameters& p) : p_(p) {
    const SlidingTiles& tiles = p.tiles;
    group_ = static_cast<int>(block_index()) % tiles.groups;
    split_ = static_cast<int>(block_index()) / tiles.groups;
    place_ = tiles.group(group_);
    rows_ = tiles.block_rows * SlidingTiles::kSize;
    begin_ = tiles.begin(place_.row, place_.eight);
    eights_ = tiles.eights(place_);
    const int warp = thread_index() / 32;
    slice_ = warp / tiles.tiles();
    tile_ = warp % tiles.tiles();
    row_ = tile_ / tiles.block_slots * SlidingTiles::kSize;
    int eight =
        tiles.begin(place_.row + row_, place_.eight) + tile_ % tiles.block_slots * SlidingTiles::kEights - begin_;
    if (eight < 0) eight += tiles.bands.eights();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int own = eight + i;
      if (own >= tiles.bands.eights()) own -= tiles.bands.eights();
      depth_rows_[i] = rows_ + (own < eights_ ? own : 0) * 8;
    }
    copies_images_ = p.pieces.copies_images();
    if (copies_images_) {
      constexpr int kRows = kThreads / kGroupPieces;
      const int low = thread_index() % p.pieces.own, high = thread_index() / p.pieces.own;
      first_ = high % kRows;
      piece_ = high / kRows * p.pieces.own + low;
    } else {
      const int pieces = p.slices * kGroupPieces;  // a power of two
      piece_ = thread_index() & (pieces - 1);
      first_ = thread_index() / pieces;
      rows_at_once_ = kThreads / pieces;
    }
    memory_ = static_cast<unsigned char*>(shared_memory());
    const int bytes = kStages * p.stage_bytes;
    planes_ = reinterpret_cast<int*>(memory_ + (bytes > kWarps * kTileBytes ? bytes : kWarps * kTileBytes));
  }

  FUSEDSC_DEVICE void loop() {
    const SlidingBands& bands = p_.tiles.bands;
    const int all = rows_ + eights_ * 8;
    for (int i = thread_index(); i < all; i += kThreads) {
      int plane = -1;
      if (i >= rows_) {
        int k = begin_ * 8 + i - rows_;
        if (k >= bands.depth()) k -= bands.depth();
        plane = bands.plane_of_depth(k);
      } else if (place_.row + i < bands.rows()) {
        plane = bands.plane_of_row(place_.row + i);
      }
      planes_[i] = plane < 0 ? -1 : plane * p_.pieces.area;
    }
    block_barrier();
    // No operand is of the kernel before this one, which has waited for whatever made them.
    int next = split_;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      start_positions(next, i);
      commit_copies();
      next += p_.splits;
    }
    let_next_kernel_start();
    Sums sums = {};
    int slot = 0;
#pragma unroll 1
    for (int step = split_; step < p_.steps; step += p_.splits) {
      wait_for_copies<kStages - 2>();
      block_barrier();
      start_positions(next, slot == 0 ? kStages - 1 : slot - 1);
      commit_copies();
      next += p_.splits;
      if (slice_ < p_.slices) multiply_stage(sums, memory_ + slot * p_.stage_bytes + slice_ * all * kGroupBytes);
      if (++slot == kStages) slot = 0;
    }
    wait_for_copies<0>();
    block_barrier();
    wait_for_previous_kernel();
    leave(sums);
  }

  /// Of all slices: each its own 32 positions.
  FUSEDSC_DEVICE void start_positions(int step, int slot) const {
    if (step >= p_.steps) return;
    const int all = rows_ + eights_ * 8;
    unsigned char* to = memory_ + slot * p_.stage_bytes;
    const auto copy = [&](int piece, int first, int at_once) {
      const int place = step * p_.slices * kGroupPieces + piece;
      const bool has_piece = place < p_.pieces.all;
      unsigned char* to_group = to + piece / kGroupPieces * all * kGroupBytes;
      const auto copy_rows = [&](const PlanesOfImages& planes, int row, int end) {
        const float* from = planes.data + (has_piece ? p_.pieces.place(planes.image, place) : 0);
#pragma unroll 4
        for (; row < end; row += at_once) {
          const int plane = planes_[row];
          start_copy<16>(to_group + place_of_piece(row, piece), from + (plane < 0 ? 0 : plane),
                         has_piece && plane >= 0);
        }
      };
      copy_rows(p_.rows, first, rows_);
      copy_rows(p_.depth, rows_ + first, all);
    };
    if (!copies_images_) return copy(piece_, first_, rows_at_once_);
    for (int slice = 0; slice < p_.slices; ++slice)
      copy(slice * kGroupPieces + piece_, first_, kThreads / kGroupPieces);
  }

  FUSEDSC_DEVICE void multiply_stage(Sums& sums, const unsigned char* memory) const {
    const int lane = thread_index() % 32, row = SlidingTiles::row_of(lane / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = place_of_piece(row, lane % 4 + half * 4);
      std::uint32_t a[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_piece(memory + (row_ + i * 8) * kGroupBytes + place, a[i]);
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        std::uint32_t b[4];
        load_piece(memory + depth_rows_[column] * kGroupBytes + place, b);
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          const std::uint32_t columns[2] = {b[k], b[k + 1]};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const std::uint32_t rows[4] = {a[2 * i][k], a[2 * i + 1][k], a[2 * i][k + 1], a[2 * i + 1][k + 1]};
            wave_multiply_add_tf32(sums[i][column], rows, columns);
          }
        }
      }
    }
  }

  /// The slices' sums, added up in their order.
  FUSEDSC_DEVICE void leave(const Sums& sums) const {
    auto* all = reinterpret_cast<hopper::Four*>(memory_);
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    if (slice_ > 0 && slice_ < p_.slices) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        store<4>(sums[i / 4][i % 4], reinterpret_cast<float*>(all + warp * 256 + i * 32 + lane));
      }
    }
    block_barrier();
    if (slice_ != 0) return;
    const SlidingTiles& tiles = p_.tiles;
    hopper::Four* to = tiles.partials + split_ * static_cast<std::int64_t>(tiles.fours()) +
                       group_ * tiles.fours_of_tile() + tile_ * 256 + lane;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      hopper::Four sum;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.elements[j] = sums[i / 4][i % 4][j];
      for (int slice = 1; slice < p_.slices; ++slice) {
        hopper::add(sum, all[(slice * tiles.tiles() + tile_) * 256 + i * 32 + lane]);
      }
      to[i * 32] = sum;
    }
  }

  const SlidingWeightParameters& p_;
  SlidingTiles::Place place_;
  int group_, split_, rows_, begin_, eights_, slice_, tile_, row_;
  int depth_rows_[4];
  bool copies_images_;
  int piece_, first_, rows_at_once_ = 0;  ///< what the thread copies: a piece, rows from `first_` on
  unsigned char* memory_;
  int* planes_;
};

}  // namespace fusedsc::gpu
