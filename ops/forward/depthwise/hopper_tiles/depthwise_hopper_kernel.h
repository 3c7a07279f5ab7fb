/// Depthwise convolution on Hopper GPUs, forward, with fusion, 16 bits, channels neighbours in memory. Rows of images
/// come to shared memory by TMA, some ahead of their use, and finished rows leave by it.
///
/// Multiplied is by tensor cores: A has 16 positions of an output row by the 8 channels that a tap sees there, B the
/// tap's weights of these channels on its diagonal; two taps side by side make a product of full depth. An instruction
/// does what 8 fused multiply-adds per thread do, and neither elements nor products need conversions. A row of A is in
/// registers once and serves all output rows whose windows cover it. Zeros times an infinity or a NaN in x make NaNs of
/// all 8 channels, which is seen in the outputs: those are computed again, each from its own channel.
///
/// Each warp owns 8 channels: no two warps touch the same elements of a tile, so that they wait for copies only. A
/// prologue is applied in place, once per element, and rounds to 16 bits as a tensor between the operators would.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_copies.h"
#include "fusedsc/forward/depthwise/hopper_tiles/depthwise_hopper_outputs.h"

namespace fusedsc::gpu::hopper {

/// kProducts: of 16 positions, that a warp has side by side.
template <class T, int kKernel, int kStride, int kProducts, DepthwiseFusion kFusion>
class DepthwiseTiles {
 public:
  FUSEDSC_DEVICE static void run(const DepthwiseTilesParameters& p) {
    DepthwiseTiles tiles(p);
    if (tiles.warp_ == p.warps()) {
      tiles.copy();
    } else {
      tiles.compute();
    }
    if constexpr (kFusion == DepthwiseFusion::training) {
      tiles.outputs_.leave_statistics(tiles.memory_, tiles.warp_, tiles.split_, tiles.first_channel_);
    }
  }

 private:
  static constexpr int kPairs = kKernel / 2;             ///< of taps of a window's row; and one more tap
  static constexpr int kKept = (kKernel - 1) / kStride;  ///< output rows that are begun and not finished
  static constexpr bool kPassesPadding = kKernel > 3;    ///< where it is much work: rows of padding are passed over
  using Cursor = DepthwiseTileCursor<DepthwiseWindow<kKernel, kStride>>;
  using Sums = float[kProducts][4];
  using Outputs = DepthwiseTileOutputs<T, kKernel, kStride, kProducts, kFusion>;

  FUSEDSC_DEVICE explicit DepthwiseTiles(const DepthwiseTilesParameters& p) : p_(p), prologue_(p), outputs_(p) {
    warp_ = uniform(thread_index() / 32);
    split_ = split_of_block(p, first_channel_);
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory_ = memory + padding_before_tiles(memory);
    out_ = memory_ + p.stages * p.tile_bytes;
    arrived_ = reinterpret_cast<Barrier*>(out_ + 2 * p.out_bytes);
    done_ = arrived_ + p.stages;
    stored_ = done_ + p.stages;
    notes_ = reinterpret_cast<DepthwiseTileNote*>(stored_ + 2);
    coefficients_ = reinterpret_cast<float*>(notes_ + p.stages) + warp_ * 16;
    prologue_.coefficients = coefficients_;
  }

  FUSEDSC_DEVICE int threads() const { return (p_.warps() + 1) * 32; }
  /// Of the copied part of a tile, a box of channels.
  FUSEDSC_DEVICE int box_tile_bytes() const { return p_.images * p_.rows * p_.pitch * p_.box_bytes; }

  // --------------------------------------------------------------------------------------- by the thread that copies

  /// Notes the tile that is next for the warps that compute, and moves on.
  FUSEDSC_DEVICE DepthwiseTileNote announce(Cursor& at, int slot) const {
    DepthwiseTileNote note{at.image, at.column, at.input_row(), at.output_row(), at.begin, at.end, at.is_first, 0};
    at.next();
    note.is_last = !at.exists;
    notes_[slot] = note;
    expect(arrived_ + slot, p_.boxes * box_tile_bytes());
    return note;
  }

  FUSEDSC_DEVICE void start_copies(const DepthwiseTileNote& note, int slot) const {
    const int column = DepthwiseWindow<kKernel, kStride>::first_column(p_, note.column);
#pragma unroll 1
    for (int box = 0; box < p_.boxes; ++box) {
      start_load(memory_ + slot * p_.tile_bytes + box * box_tile_bytes(), p_.x,
                 ImagePlace{first_channel_ + box * p_.box_bytes / 2, column, note.input_row, note.image},
                 arrived_ + slot);
    }
  }

  FUSEDSC_DEVICE void store_rows(const DepthwiseTileNote& at, int buffer) const {
    const int rows = p_.rows / kStride, row_bytes = p_.images * p_.out_pitch * p_.box_bytes;
    for (int i = 0; i < rows; ++i) {
      const int row = at.output_row + i;
      if (row < at.begin || row >= at.end) continue;
      for (int box = 0; box < p_.boxes; ++box) {
        start_store(p_.y, ImagePlace{first_channel_ + box * p_.box_bytes / 2, at.column, row, at.image},
                    out_ + buffer * p_.out_bytes + (box * rows + i) * row_bytes);
      }
    }
    commit_stores();
  }

  /// By all threads of the warp; one copies.
  FUSEDSC_DEVICE void copy() const {
    const bool copies = thread_index() % 32 == 0;
    if (copies) {
      prefetch(p_.x);
      initialise_barriers(p_, arrived_, done_, stored_);
    }
    warp_barrier();
    arrive_at_group_barrier(0, threads());
    if (!copies) return;
    Cursor ahead(p_, split_);
    bring_first_tile(
        ahead, [&](Cursor& at, int slot) { return announce(at, slot); },
        [&](const DepthwiseTileNote& note, int slot) { start_copies(note, slot); });
#pragma unroll 1
    for (int slot = 1; slot < p_.stages && ahead.exists; ++slot) start_copies(announce(ahead, slot), slot);
    if (p_.has_y) prefetch(p_.y);
    StageTurn turn;
    int buffer = 0;
#pragma unroll 1
    for (bool is_last = false; !is_last;) {
      wait(done_ + turn.slot, turn.parity);
      const DepthwiseTileNote note = notes_[turn.slot];
      is_last = note.is_last;
      if (ahead.exists) start_copies(announce(ahead, turn.slot), turn.slot);
      if (p_.has_y) {
        store_rows(note, buffer);
        wait_for_stores();
      }
      arrive(stored_ + buffer);
      buffer ^= 1;
      turn.next(p_.stages);
    }
  }

  // --------------------------------------------------------------------------------------------- by warps that compute

  FUSEDSC_DEVICE int swizzled_run(int position) const { return hopper::swizzled_run(p_.box_bytes, run_, position); }

  /// Windows at the right edge may read the next row's padding, which behind the last row is here.
  FUSEDSC_DEVICE void clear_behind_tiles() const {
    clear_behind_copies(memory_, p_.stages, p_.tile_bytes, p_.boxes * box_tile_bytes(), p_.tile_bytes, p_.warps() * 32);
  }

  /// Returns what keep_order is to be told.
  FUSEDSC_DEVICE std::uint32_t aim() {
    const int lane = thread_index() % 32, matrix = lane / 8, runs = p_.runs();
    const int part = warp_ / runs, group = warp_ - part * runs, box_runs = p_.box_bytes / 16;
    const int box = group / box_runs;
    run_ = group - box * box_runs;
    channel_ = first_channel_ + group * 8;
    const int images = p_.images / p_.image_parts, first_image = part * images;
    const int tile_place = (box * p_.images + first_image) * p_.image_bytes();
    prologue_.run = run_;
    prologue_.images = images;
    prologue_.tile_place = tile_place;
    outputs_.channel = channel_;
    outputs_.first_image = first_image;
    std::uint32_t all = 0;
#pragma unroll
    for (int pair = 0; pair <= kPairs; ++pair) {
      const int tap = 2 * pair + (pair < kPairs ? matrix / 2 : 0), position = lane % 8 * kStride + tap;
      places_[pair] = tile_place + matrix % 2 * p_.half_bytes + position * p_.box_bytes + swizzled_run(position) +
                      (pair < kPairs ? 0 : matrix / 2 * p_.product_bytes);
      all |= static_cast<std::uint32_t>(places_[pair]);
    }
    const int out_row_bytes = p_.images * p_.out_pitch * p_.box_bytes;
    out_place_ = box * (p_.rows / kStride) * out_row_bytes + first_image * p_.out_pitch * p_.box_bytes +
                 matrix % 2 * p_.out_half_bytes + matrix / 2 * p_.out_product_bytes + lane % 8 * p_.box_bytes +
                 swizzled_run(lane % 8);
    return all | static_cast<std::uint32_t>(out_place_);
  }

  /// The weights of the warp's channels, and what else belongs to them, when the kernel before has ended; `places`:
  /// what else is to be worked out before. Beyond the last channel they are zeros.
  FUSEDSC_DEVICE void load_coefficients(std::uint32_t places) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
    const bool exists = channel_ < p_.channels;
    const T* weight = elements_of<T>(p_.weight) + (exists ? channel_ + g : 0) * p_.weight.image;
    keep_order(places | upper_word(weight));
    wait_for_previous_kernel();
#pragma unroll
    for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
      for (int kw = 0; kw < kKernel; ++kw) {
        const std::uint32_t value =
            weight[kh * static_cast<int>(p_.weight.row) + kw * static_cast<int>(p_.weight.column)].bits;
        weights_[kh][kw] = exists && g / 2 == t ? value << 16 * (g % 2) : 0;
      }
    }
    load_channels(p_.bias, exists ? channel_ + 2 * t : 0, 0.0f, outputs_.bias, T());
    if constexpr (kFusion == DepthwiseFusion::eval) {
      load_channels(p_.epilogue_scale, exists ? channel_ + 2 * t : 0, 1.0f, outputs_.epilogue_scale, float());
      load_channels(p_.epilogue_shift, exists ? channel_ + 2 * t : 0, 0.0f, outputs_.epilogue_shift, float());
    }
    if (lane < 8) {
      coefficients_[lane] = p_.scale != nullptr && exists ? p_.scale[channel_ + lane] : 1.0f;
      coefficients_[8 + lane] = p_.shift != nullptr && exists ? p_.shift[channel_ + lane] : 0.0f;
    }
    warp_barrier();
  }

  FUSEDSC_DEVICE void compute() {
    clear_behind_tiles();
    const std::uint32_t places = aim();
    group_barrier(0, threads());
    load_coefficients(places);
    Sums sums[kKept];
#pragma unroll
    for (int i = 0; i < kKept * kProducts * 4; ++i) sums[i / (kProducts * 4)][i / 4 % kProducts][i % 4] = 0;
    // Numbers of its own instead of a StageTurn: nvcc gives some of these kernels more registers with one.
    int slot = 0, parity = 0, buffer = 0, buffer_parity = 1;
#pragma unroll 1
    for (bool is_last = false; !is_last;) {
      wait(arrived_ + slot, parity);
      const DepthwiseTileNote& at = notes_[slot];
      if (at.is_first) outputs_.begin_piece(at);
      unsigned char* tile = memory_ + slot * p_.tile_bytes;
      if (p_.has_prologue) {
        prologue_.apply(tile, kStride, at);
        warp_barrier();
      }
      wait(stored_ + buffer, buffer_parity);
      unsigned char* out = out_ + buffer * p_.out_bytes + out_place_;
      int row = at.output_row, r = 0, inside = p_.rows;
      const int begin = at.begin, end = at.end;
      if constexpr (kPassesPadding) {
        inside = least(inside, (p_.input_height - at.input_row + kStride - 1) / kStride * kStride);
        if (at.input_row < 0 && p_.padding_top < kKernel) {
          r = least(-at.input_row / kStride * kStride, inside);
          begin_image(sums);
          tile += r * p_.pitch * p_.box_bytes;
          out += r / kStride * p_.images * p_.out_pitch * p_.box_bytes;
          row += r / kStride;
        }
      }
#pragma unroll 1
      for (; r < inside; r += kStride) {
        const typename Outputs::Row output = outputs_.row_of(row, row >= begin && row < end);
#pragma unroll
        for (int phase = 0; phase < kStride; ++phase) {
          add_row(tile, phase, sums, out, output);
          tile += p_.pitch * p_.box_bytes;
        }
        out += p_.images * p_.out_pitch * p_.box_bytes;
        ++row;
      }
      if constexpr (kPassesPadding) {
#pragma unroll 1
        for (; r < p_.rows; r += kStride) {
          const bool exists = row >= begin && row < end;
          pass_row(sums, out, outputs_.row_of(row, exists), exists);
          out += p_.images * p_.out_pitch * p_.box_bytes;
          ++row;
        }
      }
      is_last = at.is_last;
      publish();
      arrive_as_warp(done_ + slot);
      buffer_parity ^= buffer;
      buffer ^= 1;
      if (++slot == p_.stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    let_next_kernel_start();
  }

  /// Products 2 * pair and 2 * pair + 1: their elements of a row of x.
  struct Operands {
    std::uint32_t pairs[2][kPairs][4], last[4];
  };
  FUSEDSC_DEVICE void load_operands(const unsigned char* row, int first, Operands& to) const {
#pragma unroll
    for (int i = 0; i < 2 && first + i < kProducts; ++i) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        load_matrices(row + places_[pair] + (first + i) * p_.product_bytes, to.pairs[i][pair]);
      }
    }
    if (first + 1 < kProducts) {
      load_matrices(row + places_[kPairs] + first * p_.product_bytes, to.last);
    } else {
      load_matrices(row + places_[kPairs] + first * p_.product_bytes, *reinterpret_cast<std::uint32_t(*)[2]>(to.last));
    }
  }

  /// Of a row of x, what the middle columns of windows see: of products `first` and the next, at the thread's
  /// positions.
  FUSEDSC_DEVICE void read_middle(const unsigned char* row, int first, std::uint32_t (&to)[2][2]) const {
    constexpr int kMiddle = kKernel / 2;
#pragma unroll
    for (int i = 0; i < 2 && first + i < kProducts; ++i) {
      std::uint32_t taps[4];
      load_matrices(row + places_[kMiddle / 2] + (first + i) * p_.product_bytes, taps);
#pragma unroll
      for (int half = 0; half < 2; ++half) to[i][half] = taps[kMiddle % 2 * 2 + half];
    }
  }

  /// A row of x, number `phase` of those that a row of outputs moves on by, to all rows of outputs that it belongs to.
  /// That which it completes goes to `out`.
  FUSEDSC_DEVICE void add_row(const unsigned char* row, int phase, Sums (&sums)[kKept], unsigned char* out,
                              const typename Outputs::Row& output) {
    Operands operands[2];
    float finished[2][2][4];
    const auto see = [&](int first, std::uint32_t(&to)[2][2]) { read_middle(row, first, to); };
    load_operands(row, 0, operands[0]);
#pragma unroll
    for (int first = 0; first < kProducts; first += 2) {
      if (first + 2 < kProducts) load_operands(row, first + 2, operands[(first + 2) / 2 % 2]);
      multiply(operands[first / 2 % 2], first, phase, sums, finished[first / 2 % 2]);
      if (phase == 0 && first > 0) {
        outputs_.finish(out, first - 2, output, finished[(first - 2) / 2 % 2], prologue_, see);
      }
    }
    constexpr int kLast = (kProducts - 1) / 2 * 2;
    if (phase == 0) outputs_.finish(out, kLast, output, finished[kLast / 2 % 2], prologue_, see);
  }

  /// Behind the padding above an image.
  FUSEDSC_DEVICE void begin_image(Sums (&sums)[kKept]) const {
#pragma unroll
    for (int i = 0; i < kKept * kProducts * 4; ++i) {
      sums[i / (kProducts * 4)][i / 4 % kProducts][i % 4] = outputs_.bias[i % 2];
    }
  }

  /// Instead of add_row, of padding below an image: there is nothing to add, but maybe a row of outputs to finish.
  FUSEDSC_DEVICE void pass_row(Sums (&sums)[kKept], unsigned char* out, const typename Outputs::Row& output,
                               bool exists) {
#pragma unroll
    for (int first = 0; first < kProducts; first += 2) {
      float finished[2][4];
#pragma unroll
      for (int i = 0; i < 8 && first + i / 4 < kProducts; ++i) {
        const int product = first + i / 4, v = i % 4;
        finished[i / 4][v] = sums[kKept - 1][product][v];
#pragma unroll
        for (int age = kKept - 1; age > 0; --age) sums[age][product][v] = sums[age - 1][product][v];
      }
      if (exists) outputs_.finish(out, first, output, finished, prologue_, [](int, std::uint32_t(&)[2][2]) {});
    }
  }

  FUSEDSC_DEVICE void multiply(const Operands& operands, int first, int phase, Sums (&sums)[kKept],
                               float (&finished)[2][4]) const {
#pragma unroll
    for (int age = kKept; age >= 0; --age) {
      const int kh = phase + age * kStride;
      if (kh >= kKernel) continue;
#pragma unroll
      for (int i = 0; i < 2 && first + i < kProducts; ++i) {
        float sum[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          sum[v] = phase > 0  ? sums[age % kKept][first + i][v]
                   : age == 0 ? outputs_.bias[v % 2]
                              : sums[age - 1][first + i][v];
        }
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const std::uint32_t(&a)[4] = operands.pairs[i][pair];
          wave_multiply_add(sum, {{a[0], a[1], a[2], a[3]}, {weights_[kh][2 * pair], weights_[kh][2 * pair + 1]}}, T());
        }
        wave_multiply_add_half(sum, {operands.last[2 * i], operands.last[2 * i + 1]}, weights_[kh][kKernel - 1], T());
        float(&to)[4] = phase == 0 && age == kKept ? finished[i] : sums[age % kKept][first + i];
#pragma unroll
        for (int v = 0; v < 4; ++v) to[v] = sum[v];
      }
    }
  }

  const DepthwiseTilesParameters& p_;
  int warp_, split_, first_channel_;
  unsigned char *memory_, *out_;
  Barrier *arrived_, *done_, *stored_;  ///< tiles have come; warps are done with them; outputs are read
  int run_ = 0, channel_ = 0;           ///< of the warp: its run of a box, its first channel
  int places_[kPairs + 1], out_place_ = 0;
  std::uint32_t weights_[kKernel][kKernel];
  DepthwiseTileNote* notes_;  ///< of the tiles
  float* coefficients_;       ///< of the warp: scale, shift
  DepthwiseTilePrologue<T> prologue_;
  Outputs outputs_;
};

}  // namespace fusedsc::gpu::hopper
