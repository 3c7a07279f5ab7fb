/// Forward pass and input gradient of a sliding-channel convolution of contiguous float tensors: products of a banded
/// weight with positions. A block has some rows of the result; it keeps their weight in shared memory and goes over
/// tiles of positions, of which all channels come in stages.
#pragma once

#include "fusedsc/forward/sliding_channel/planes/sliding_fragments.h"
#include "fusedsc/forward/sliding_channel/planes/sliding_planes.h"

namespace fusedsc::gpu {

struct SlidingProductParameters {
  SlidingBands bands;
  PlanePieces pieces;
  PlanesOfImages from;
  float* to = nullptr;
  std::int64_t to_image = 0;
  const SlidingFragment* fragments = nullptr;
  int steps = 0;        ///< of the fragments of 16 rows
  int block_steps = 0;  ///< the most of a block's rows
  int row_blocks = 1, splits = 1, tiles = 0;
};

/// kRowTiles: of 16 rows, and kGroups: of 32 positions, of a warp; then how many warps a block has for rows and for
/// positions.
template <int kRowTiles, int kGroups, int kWarpRows, int kWarpColumns, int kStages>
class SlidingProduct {
 public:
  static constexpr int kThreads = 32 * kWarpRows * kWarpColumns, kRows = 16 * kRowTiles * kWarpRows;
  static constexpr int kBlockGroups = kGroups * kWarpColumns, kPieces = kBlockGroups * kGroupPieces;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int depth, int steps) {
    return kStages * kStageBytes + kRows / 16 * steps * kFragmentBytes + (depth + kRows + 2 * kTiles) * 4;
  }

  FUSEDSC_DEVICE static void run(const SlidingProductParameters& p) {
    SlidingProduct product(p);
    product.loop();
  }

 private:
  static constexpr int kStepsOfStage = 4, kDepth = 8 * kStepsOfStage, kFragmentBytes = 512;
  static constexpr int kGroupOfStage = kDepth * kGroupBytes, kStageBytes = kBlockGroups * kGroupOfStage;
  static constexpr int kTiles = kRows / 16, kRowsAtOnce = kThreads / kPieces;
  // A thread copies rows of its piece, or a piece of each group of its row.
  static_assert(kThreads == kDepth * kGroupPieces && kThreads % kPieces == 0);

  using Sums = float[kRowTiles][kGroups][4][4];  ///< of pieces' position i, as an instruction has them

  FUSEDSC_DEVICE explicit SlidingProduct(const SlidingProductParameters& p) : p_(p) {
    warp_row_ = thread_index() / 32 / kWarpColumns;
    warp_column_ = thread_index() / 32 % kWarpColumns;
    const int block = static_cast<int>(block_index());
    first_row_ = block % p.row_blocks * kRows;
    first_tile_ = next_tile_ = block / p.row_blocks;
    all_eights_ = p.bands.eights();
    const auto band = p.bands.band(first_row_, kRows);
    begin_ = band.begin;
    block_steps_ = band.count;
    stages_of_tile_ = (band.count + kStepsOfStage - 1) / kStepsOfStage;
    copies_images_ = p.pieces.copies_images();
    if (copies_images_) {
      const int low = thread_index() % p.pieces.own, high = thread_index() / p.pieces.own;
      row_ = high % kDepth;
      piece_ = high / kDepth * p.pieces.own + low;
    } else {
      row_ = thread_index() / kPieces;
      piece_ = thread_index() % kPieces;
    }
    memory_ = static_cast<unsigned char*>(shared_memory());
    weight_ = memory_ + kStages * kStageBytes;
    planes_ = reinterpret_cast<int*>(weight_ + kTiles * p.steps * kFragmentBytes);
    output_planes_ = planes_ + p.bands.depth();
    tile_bands_ = output_planes_ + kRows;
  }

  FUSEDSC_DEVICE void loop() {
    for (int k = thread_index(); k < p_.bands.depth(); k += kThreads) {
      planes_[k] = p_.bands.plane_of_depth(k) * p_.pieces.area;
    }
    for (int i = thread_index(); i < kRows; i += kThreads) {
      const int row = first_row_ + i;
      output_planes_[i] = row < p_.bands.rows() ? p_.bands.plane_of_row(row) * p_.pieces.area : -1;
    }
    if (thread_index() < kTiles) {
      const int row = first_row_ + thread_index() * 16;
      SlidingBands::Band own{};
      if (row < p_.bands.rows()) own = p_.bands.band(row, 16);
      tile_bands_[2 * thread_index()] = begin_ - own.begin + (begin_ < own.begin ? all_eights_ : 0);
      tile_bands_[2 * thread_index() + 1] = own.count;
    }
    block_barrier();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      shift_[i] = tile_bands_[2 * (warp_row_ * kRowTiles + i)];
      steps_[i] = tile_bands_[2 * (warp_row_ * kRowTiles + i) + 1];
    }
    find_piece();
    // The activations are not of the kernel before this one, which has waited for whatever made them. The weight is.
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      start_positions(i);
      next();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      start_weight(i);
      commit_copies();
    }
    int slot = 0, stage_of_weight = kStages - 1;
#pragma unroll 1
    for (int tile = first_tile_; tile < p_.tiles; tile += p_.splits) {
      Sums sums = {};
#pragma unroll 1
      for (int stage = 0; stage < stages_of_tile_; ++stage) {
        wait_for_copies<kStages - 2>();
        block_barrier();
        start_positions(slot == 0 ? kStages - 1 : slot - 1);
        next();
        start_weight(stage_of_weight++);
        commit_copies();
        multiply_stage(sums, memory_ + slot * kStageBytes, stage);
        if (++slot == kStages) slot = 0;
      }
      store_sums(sums, tile);
    }
    wait_for_copies<0>();
  }

  // ------------------------------------------------------------------------------------------------------------ copies

  /// Of the tile that is copied next: the thread's first piece.
  FUSEDSC_DEVICE void find_piece() {
    const int piece = next_tile_ * kPieces + piece_;
    pieces_left_ = next_tile_ < p_.tiles ? p_.pieces.all - piece : 0;
    from_ = p_.from.data + (pieces_left_ > 0 ? p_.pieces.place(p_.from.image, piece) : 0);
  }

  FUSEDSC_DEVICE void next() {
    if (++next_stage_ < stages_of_tile_) return;
    next_stage_ = 0;
    next_tile_ += p_.splits;
    find_piece();
  }

  /// All of a tile's pieces, of the next eights.
  FUSEDSC_DEVICE void start_positions(int slot) const {
    if (next_tile_ >= p_.tiles) return;
    const int left = (block_steps_ - next_stage_ * kStepsOfStage) * 8, depth = all_eights_ * 8;
    unsigned char* to = memory_ + slot * kStageBytes;
    int k = begin_ * 8 + next_stage_ * kDepth + row_;
    if (k >= depth) k -= depth;
    if (copies_images_) {  // neighbouring threads have neighbouring channels of an image
      if (row_ >= left) return;
      const int images = kGroupPieces / p_.pieces.own;
      const float* from = from_ + planes_[k];
#pragma unroll
      for (int i = 0; i < kBlockGroups; ++i) {
        const bool exists = i * kGroupPieces < pieces_left_;
        start_copy<16>(to + i * kGroupOfStage + place_of_piece(row_, piece_),
                       exists ? from + i * images * p_.from.image : from, exists);
      }
      return;
    }
    to += piece_ / kGroupPieces * kGroupOfStage;
#pragma unroll
    for (int i = 0; i < kDepth / kRowsAtOnce; ++i) {
      const int row = row_ + i * kRowsAtOnce;
      if (row >= left) break;
      start_copy<16>(to + place_of_piece(row, piece_), from_ + planes_[k], pieces_left_ > 0);
      k += kRowsAtOnce;
      if (k >= depth) k -= depth;
    }
  }

  /// What a stage of the first tile wants of the weight.
  FUSEDSC_DEVICE void start_weight(int stage) const {
    if (stage >= stages_of_tile_) return;
    const int lane = thread_index() % 32;
#pragma unroll 1
    for (int tile = thread_index() / 32; tile < kTiles; tile += kThreads / 32) {
      const int shift = tile_bands_[2 * tile], count = tile_bands_[2 * tile + 1];
      const auto* from = p_.fragments + static_cast<std::int64_t>(first_row_ / 16 + tile) * p_.steps * 32 + lane;
      unsigned char* to = weight_ + tile * p_.steps * kFragmentBytes + lane * 16;
#pragma unroll
      for (int i = 0; i < kStepsOfStage; ++i) {
        const int step = stage * kStepsOfStage + i;
        int place = step + shift;
        if (place >= all_eights_) place -= all_eights_;
        if (step < block_steps_ && place < count) start_copy<16>(to + place * kFragmentBytes, from + place * 32, true);
      }
    }
  }

  // ---------------------------------------------------------------------------------------------------------- products

  FUSEDSC_DEVICE void multiply_stage(Sums& sums, const unsigned char* memory, int stage) const {
    const int first = stage * kStepsOfStage;
    int places[kRowTiles];
    bool is_any = false, is_all = first + kStepsOfStage <= block_steps_;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      places[tile] = first + shift_[tile];
      if (places[tile] >= all_eights_) places[tile] -= all_eights_;
      is_all = is_all && places[tile] + kStepsOfStage <= steps_[tile];
      is_any = is_any || places[tile] < steps_[tile] || places[tile] + kStepsOfStage > all_eights_;
    }
    if (is_all) multiply_steps<true>(sums, memory, first, places);
    else if (is_any) multiply_steps<false>(sums, memory, first, places);
  }

  /// kAll: all of a stage, which nothing keeps from being read ahead of its use.
  template <bool kAll>
  FUSEDSC_DEVICE void multiply_steps(Sums& sums, const unsigned char* memory, int first,
                                     int (&places)[kRowTiles]) const {
    const int lane = thread_index() % 32, k = lane % 4, piece = piece_of_column(lane / 4);
    const unsigned char* from = memory + warp_column_ * kGroups * kGroupOfStage;
    const unsigned char* weight = weight_ + warp_row_ * kRowTiles * p_.steps * kFragmentBytes + lane * 16;
#pragma unroll
    for (int i = 0; i < kStepsOfStage; ++i) {
      bool is_wanted[kRowTiles], is_any = kAll;
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        is_wanted[tile] = kAll || (places[tile] < steps_[tile] && first + i < block_steps_);
        is_any = is_any || is_wanted[tile];
      }
      if (is_any) {
        std::uint32_t b[kGroups][2][4];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            load_piece(from + group * kGroupOfStage + i * 8 * kGroupBytes + place_of_piece(k + half * 4, piece),
                       b[group][half]);
          }
        }
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          if (!is_wanted[tile]) continue;
          const auto run =
              load<4>(reinterpret_cast<const float*>(weight + (tile * p_.steps + places[tile]) * kFragmentBytes));
          const std::uint32_t a[4] = {run.words[0], run.words[1], run.words[2], run.words[3]};
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const std::uint32_t columns[2] = {b[group][0][j], b[group][1][j]};
              wave_multiply_add_tf32(sums[tile][group][j], a, columns);
            }
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if (++places[tile] == all_eights_) places[tile] = 0;
      }
    }
  }

  /// An instruction's column is a piece, of which there are four such columns. Neighbouring threads have columns 2t and
  /// 2t + 1 of the result: pieces t and t + 4, so that they store whole sectors.
  FUSEDSC_DEVICE static int piece_of_column(int column) { return column / 2 + column % 2 * 4; }

  FUSEDSC_DEVICE void store_sums(const Sums& sums, int tile) const {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int piece = tile * kPieces + (warp_column_ * kGroups + group) * kGroupPieces + lane % 4 + column * 4;
        if (piece >= p_.pieces.all) continue;
        float* to = p_.to + p_.pieces.place(p_.to_image, piece);
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          const int plane = output_planes_[warp_row_ * kRowTiles * 16 + i * 8 + lane / 4];
          if (plane < 0) continue;
          float values[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) values[j] = sums[i / 2][group][j][i % 2 * 2 + column];
          store<4>(values, to + plane);
        }
      }
    }
  }

  const SlidingProductParameters& p_;
  int warp_row_, warp_column_, first_row_, first_tile_;
  int all_eights_, begin_, block_steps_,
      stages_of_tile_;                       ///< eights of the depth, and of it what the block's rows want
  int shift_[kRowTiles], steps_[kRowTiles];  ///< of the warp's rows: the block's first eight, and how many they want
  int next_tile_, next_stage_ = 0;           ///< what is copied next
  bool copies_images_;
  int row_, piece_, pieces_left_ = 0;  ///< that the thread copies first, in a stage; pieces from there on
  const float* from_ = nullptr;
  unsigned char *memory_, *weight_;
  int *planes_, *output_planes_,
      *tile_bands_;  ///< tile_bands_: the block's first eight in those of 16 rows, their number
};

}  // namespace fusedsc::gpu
