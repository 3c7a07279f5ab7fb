/// What the depthwise kernels for Hopper GPUs have in common that make one image of another: tiles that come and go by
/// TMA, and where a warp has its 8 channels of them.
#pragma once

#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_copies.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_outputs.h"

namespace fusedsc::gpu::hopper {

/// kInSegments: rows of tiles are cut into segments, not into boxes of channels. kFewRegisters: what can be read or
/// worked out late is, for blocks of 20 warps, whose threads have 96 registers. kTheirPairs: of channels, that a warp
/// has; 4, which are a run of 16 bytes, or 2.
template <class T, class Window, bool kInSegments, bool kFewRegisters = false, int kTheirPairs = 4>
class DepthwisePatchesBlock {
 protected:
  static constexpr int kPairs = kTheirPairs;  ///< of channels
  static constexpr int kRunParts = 4 / kPairs;
  /// Outputs of a row, as DepthwisePatchesOutputs has them.
  using Sums = float[kPairs][4];
  /// A warp's channels of a position.
  using Run = Aligned<std::uint32_t, kPairs>;
  using Outputs = DepthwisePatchesOutputs<T, Window, kPairs>;
  using Cursor = DepthwiseTileCursor<Window>;

  FUSEDSC_DEVICE explicit DepthwisePatchesBlock(const DepthwisePatchesParameters& p) : p_(p), outputs_(p) {
    warp_ = uniform(thread_index() / 32);
    split_ = split_of_block(p, first_channel_);
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory_ = memory + padding_before_tiles(memory);
    out_ = memory_ + p.stages * p.tile_bytes;
    notes_ = reinterpret_cast<DepthwiseTileNote*>(out_ + 2 * p.out_bytes);
    arrived_ = reinterpret_cast<Barrier*>(notes_ + p.stages);
    done_ = arrived_ + p.stages;
    stored_ = done_ + p.stages;
  }

  /// Of a tile of x.
  FUSEDSC_DEVICE int row_bytes() const { return kInSegments ? p_.segment_bytes : p_.pitch * p_.box_bytes; }
  FUSEDSC_DEVICE int image_bytes() const { return p_.rows * row_bytes(); }

  // ----------------------------------------------------------------------------------------- by the threads that copy

  /// By the two warps behind those that compute; one thread of each copies.
  FUSEDSC_DEVICE void copy() const {
    const bool copies = thread_index() % 32 == 0;
    if (warp_ == p_.warps()) {
      if (copies) {
        prefetch(p_.x);
        initialise_barriers(p_, arrived_, done_, stored_);
      }
      warp_barrier();
      arrive_at_group_barrier(0, p_.threads());
      if (copies) load_tiles();
    } else {
      if (copies) prefetch(p_.y);
      warp_barrier();
      group_barrier(0, p_.threads());
      if (copies) store_tiles();
    }
  }

  /// Notes the tile that is next for the warps that compute, and moves on.
  FUSEDSC_DEVICE DepthwiseTileNote announce(Cursor& at, int slot) const {
    DepthwiseTileNote note{at.image, at.column, at.input_row(), at.output_row(), at.begin, at.end, at.is_first, 0};
    at.next();
    note.is_last = !at.exists;
    notes_[slot] = note;
    expect(arrived_ + slot, (kInSegments ? p_.segments : p_.boxes) * p_.images * image_bytes());
    return note;
  }

  FUSEDSC_DEVICE void start_copies(const DepthwiseTileNote& note, int slot) const {
    const int column = Window::first_column(p_, note.column), bytes = p_.images * image_bytes();
    unsigned char* tile = memory_ + slot * p_.tile_bytes;
    if constexpr (kInSegments) {
#pragma unroll 1
      for (int s = 0; s < p_.segments; ++s) {
        const int byte = column * p_.box_bytes + s * p_.segment_bytes;
        start_load(tile + s * bytes, p_.x, ImagePlace{byte / kRowUnit, 0, note.input_row, note.image}, arrived_ + slot);
      }
    } else {
#pragma unroll 1
      for (int box = 0; box < p_.boxes; ++box) {
        start_load(tile + box * bytes, p_.x,
                   ImagePlace{first_channel_ + box * p_.box_bytes / 2, column, note.input_row, note.image},
                   arrived_ + slot);
      }
    }
  }

  FUSEDSC_DEVICE void load_tiles() const {
    Cursor ahead(p_, split_);
    const auto note = [&](Cursor& at, int slot) { return announce(at, slot); };
    const auto start = [&](const DepthwiseTileNote& tile, int slot) { start_copies(tile, slot); };
    bring_first_tile(ahead, note, start);
    bring_other_tiles(ahead, p_.stages, done_, note, start);
  }

  FUSEDSC_DEVICE void store_tiles() const {
    Cursor at(p_, split_);
    StageTurn turn;
    int buffer = 0;
    const int rows = p_.out_rows;
    wait_for_previous_kernel();
#pragma unroll 1
    while (at.exists) {
      const int first_row = at.output_row(), begin = at.begin, end = at.end;
      const ImagePlace first{first_channel_, at.column, first_row, at.image};
      at.next();
      wait(done_ + turn.slot, turn.parity);
      for (int i = 0; i < rows; ++i) {
        if (first_row + i < begin || first_row + i >= end) continue;
        if constexpr (kInSegments) {
          for (int s = 0; s < p_.out_segments; ++s) {
            start_store(p_.y, ImagePlace{s * p_.out_segment_bytes / kRowUnit, 0, first.row + i, first.image},
                        out_ + buffer * p_.out_bytes + i * p_.out_row_bytes + s * p_.images * p_.out_segment_bytes);
          }
          continue;
        }
        for (int box = 0; box < p_.boxes; ++box) {
          start_store(p_.y,
                      ImagePlace{first.channel + box * p_.box_bytes / 2, first.column, first.row + i, first.image},
                      out_ + buffer * p_.out_bytes + (box * rows + i) * p_.out_row_bytes);
        }
      }
      commit_stores();
      wait_for_stores();
      arrive(stored_ + buffer);
      buffer ^= 1;
      turn.next(p_.stages);
    }
  }

  // --------------------------------------------------------------------------------------------- by warps that compute

  /// Patches at the right edge may read the next row, which behind the last row is here.
  FUSEDSC_DEVICE void clear_behind_tiles() const {
    const int copied = (kInSegments ? p_.segments : p_.boxes) * p_.images * image_bytes();
    clear_behind_copies(memory_, p_.stages, p_.tile_bytes, copied, p_.tile_bytes, p_.warps() * 32);
  }

  /// patch_step: columns of the input from one patch to the next; kGroups: of 4 columns that a patch reads. Returns
  /// what keep_order is to be told.
  template <int kGroups>
  FUSEDSC_DEVICE std::uint32_t aim(int patch_step, int (&places)[kGroups]) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, runs = p_.runs();
    const int run_part = warp_ % kRunParts, part = warp_ / kRunParts / runs, group = warp_ / kRunParts - part * runs;
    const int box_runs = p_.box_bytes / 16, box = group / box_runs, run = group - box * box_runs;
    const int part_place = run_part * static_cast<int>(sizeof(Run));
    channel_ = first_channel_ + group * 8 + run_part * 2 * kPairs;
    const int first_image = part * p_.product_images();
    const int tile_place = (box * p_.images + first_image) * image_bytes() + part_place;
    outputs_.channel = channel_;
    outputs_.first_image = first_image;

    // Patches of no use do as the first.
    const int width = least(p_.tile_columns, p_.output_width), image = g / least(p_.image_lines, 8);
    const int patch = g % p_.image_lines;
    std::uint32_t all = 0;
    const bool exists = 4 * patch < width, second_exists = p_.image_lines < 16 || 4 * patch + 32 < width;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int position = (exists ? patch * patch_step : 0) + t + 4 * i;
      const int place = kInSegments ? place_in_segments(p_, p_.segment_bytes, p_.images * image_bytes(), run, position)
                                    : position * p_.box_bytes + place_of_run(p_, run, position);
      places[i] = tile_place + image * image_bytes() + place;
      all |= static_cast<std::uint32_t>(places[i]);
    }
    half_ = second_exists ? p_.half_bytes : 0;
    const int column = 4 * patch + t;
    if constexpr (kInSegments) {
      const int bytes = p_.out_segment_bytes;
      return all | outputs_.aim(part_place + (first_image + image) * bytes +
                                place_in_segments(p_, bytes, p_.images * bytes, run, column));
    }
    return all |
           outputs_.aim(part_place + box * p_.out_rows * p_.out_row_bytes +
                        ((first_image + image) * p_.out_pitch + column) * p_.box_bytes + place_of_run(p_, run, column));
  }

  /// Calls use(note, tile, out) for all tiles of the block, each when it has come and there is room for its outputs.
  template <class Use>
  FUSEDSC_DEVICE void work_off(const Use& use) {
    StageTurn turn;
    int buffer = 0, buffer_parity = 1;
#pragma unroll 1
    for (bool is_last = false; !is_last;) {
      wait(arrived_ + turn.slot, turn.parity);
      const DepthwiseTileNote& at = notes_[turn.slot];
      outputs_.begin_tile(at);
      if constexpr (!kFewRegisters) is_last = read_entry(at.is_last);
      wait(stored_ + buffer, buffer_parity);
      use(at, memory_ + turn.slot * p_.tile_bytes, out_ + buffer * p_.out_bytes);
      if constexpr (kFewRegisters) is_last = read_entry(at.is_last);
      publish();
      arrive_as_warp(done_ + turn.slot);
      buffer_parity ^= buffer;
      buffer ^= 1;
      turn.next(p_.stages);
    }
    let_next_kernel_start();
  }

  /// Behind everything else: p.weight_bytes.
  FUSEDSC_DEVICE void* weight_memory() const { return stored_ + 2; }

  FUSEDSC_DEVICE void load_halves(const unsigned char* from, Run (&to)[2]) const {
    auto half = static_cast<std::uint32_t>(half_);
    if constexpr (kFewRegisters) hide_origin(half);  // or its sum with each place would have a register of its own
    to[0] = *reinterpret_cast<const Run*>(from);
    to[1] = *reinterpret_cast<const Run*>(from + half);
  }

  /// To two words of a product's operand, for each pair of channels in neighbouring registers, as products want it.
  /// The compiler shall not know that nothing else changes: it would copy anew for every product.
  template <int kWords>
  FUSEDSC_DEVICE void sort(const Run (&halves)[2], int first, std::uint32_t (&to)[kPairs][kWords]) const {
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      to[i / 2][first + i % 2] = reordered(halves[i % 2].elements[i / 2], p_.same_order);
    }
  }

  FUSEDSC_DEVICE static void clear(Sums& sums) {
#pragma unroll
    for (int i = 0; i < kPairs * 4; ++i) sums[i / 4][i % 4] = 0;
  }

  const DepthwisePatchesParameters& p_;
  int warp_, split_, first_channel_;
  unsigned char *memory_, *out_;
  Barrier *arrived_, *done_, *stored_;  ///< tiles have come; warps are done with them; outputs are read
  DepthwiseTileNote* notes_;            ///< of the tiles
  int channel_ = 0;                     ///< of the warp, its first
  int half_ = 0;                        ///< of the thread, in tiles of x: from one half of the patches to the other
  Outputs outputs_;
};

}  // namespace fusedsc::gpu::hopper
