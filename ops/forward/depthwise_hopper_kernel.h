/// Depthwise convolution on Hopper GPUs, forward, 16 bits, channels neighbours in memory. Rows of images come to block
/// memory by the copy engine, some ahead of their use, and finished rows leave by it.
///
/// Multiplied is by tensor cores: A has 16 patches of 8 columns of two channels, as they lie side by side in memory, B
/// the weights of a window's row, shifted by one column from each of 4 output columns to the next, each channel its
/// own. Elements go from block memory to registers as they are, 8 channels at a time, and outputs back likewise:
/// there is nothing to exchange between threads. A row of A is in registers once and serves all output rows whose
/// windows cover it. Zeros times an infinity or a NaN in x make NaNs of a patch's other outputs, which is seen in
/// them: those are computed again, each from its own channel.
///
/// Each warp owns 8 channels: no two warps touch the same elements of a tile, so that they wait for copies only. A
/// prologue is applied in place, once per element, and rounds to 16 bits as a tensor between the operators would.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/wave_product.h"
#include "fusedsc/forward/depthwise_hopper_outputs.h"

namespace fusedsc::gpu::hopper {

template <class T, int kKernel, int kStride, DepthwiseSeams kSeams>
class DepthwiseTiles {
 public:
  FUSEDSC_DEVICE static void run(const DepthwiseTilesParameters& p) {
    DepthwiseTiles tiles(p);
    tiles.begin();
    if (tiles.warp_ < p.warps()) {
      tiles.compute();
    } else if (thread_index() % 32 == 0) {
      if (tiles.warp_ == p.warps()) tiles.load_tiles();
      else tiles.store_tiles();
    }
    if constexpr (kSeams == DepthwiseSeams::training) {
      tiles.outputs_.leave_statistics(tiles.memory_, tiles.warp_, tiles.split_, tiles.first_channel_);
    }
  }

 private:
  static constexpr int kGroups = kStride + 1;            ///< of 4 columns that a patch of 4 outputs reads
  static constexpr int kKept = (kKernel - 1) / kStride;  ///< output rows that are begun and not finished
  static constexpr int kPairs = 4;                       ///< of channels
  using Cursor = DepthwiseTileCursor<kKernel, kStride>;
  using Sums = float[kPairs][4];
  using Run = Aligned<std::uint32_t, 4>;
  using Outputs = DepthwiseTileOutputs<T, kKernel, kStride, kSeams>;

  FUSEDSC_DEVICE explicit DepthwiseTiles(const DepthwiseTilesParameters& p) : p_(p), prologue_(p), outputs_(p) {
    warp_ = uniform(thread_index() / 32);
    std::uint32_t group = block_index();
    split_ = static_cast<int>(p.by_channel_groups.divide(group));
    first_channel_ = static_cast<int>(group) * p.runs() * 8;
    auto* memory = static_cast<unsigned char*>(block_memory());
    memory_ = memory + (1024 - address_of(memory) % 1024) % 1024;
    out_ = memory_ + p.stages * p.tile_bytes;
    auto* all_channels = reinterpret_cast<DepthwiseChannels*>(out_ + 2 * p.out_bytes);
    channels_ = all_channels + warp_;
    notes_ = reinterpret_cast<DepthwiseTileNote*>(all_channels + p.warps());
    arrived_ = reinterpret_cast<Barrier*>(notes_ + p.stages);
    done_ = arrived_ + p.stages;
    stored_ = done_ + p.stages;
  }

  FUSEDSC_DEVICE void begin() {
    if (thread_index() == 0) {
      for (int i = 0; i < p_.stages; ++i) {
        initialise(arrived_ + i);
        initialise(done_ + i, p_.warps());
      }
      initialise(stored_);
      initialise(stored_ + 1);
      publish();
    }
    // Patches at the right edge may read the next row, which behind the last row is here.
    const int tile_bytes = p_.boxes * p_.images * p_.image_bytes();
    for (int stage = 0; stage < p_.stages; ++stage) {
      for (int i = tile_bytes + thread_index() * 16; i < p_.tile_bytes; i += p_.threads() * 16) {
        *reinterpret_cast<Run*>(memory_ + stage * p_.tile_bytes + i) = {};
      }
    }
    block_barrier();
    wait_for_previous_kernel();
  }

  // ----------------------------------------------------------------------------------------- by the threads that copy

  FUSEDSC_DEVICE void load_tiles() const {
    Cursor at(p_, split_);
    int slot = 0, parity = 1;
#pragma unroll 1
    while (at.exists) {
      wait(done_ + slot, parity);
      DepthwiseTileNote note{at.image, at.column, at.input_row(), at.output_row(), at.begin, at.end, at.is_first, 0};
      const ImagePlace first{first_channel_, at.input_column(), at.input_row(), at.image};
      at.next();
      note.is_last = !at.exists;
      notes_[slot] = note;
      const int bytes = p_.images * p_.image_bytes();
      expect(arrived_ + slot, p_.boxes * bytes);
      for (int box = 0; box < p_.boxes; ++box) {
        start_load(memory_ + slot * p_.tile_bytes + box * bytes, p_.x,
                   ImagePlace{first.channel + box * p_.box_bytes / 2, first.column, first.row, first.image},
                   arrived_ + slot);
      }
      next(slot, parity);
    }
  }

  FUSEDSC_DEVICE void store_tiles() const {
    Cursor at(p_, split_);
    int slot = 0, parity = 0, buffer = 0;
    const int rows = p_.out_rows(kStride);
#pragma unroll 1
    while (at.exists) {
      const int first_row = at.output_row(), begin = at.begin, end = at.end;
      const ImagePlace first{first_channel_, at.column, first_row, at.image};
      at.next();
      wait(done_ + slot, parity);
      for (int i = 0; i < rows && p_.has_y; ++i) {
        if (first_row + i < begin || first_row + i >= end) continue;
        for (int box = 0; box < p_.boxes; ++box) {
          start_store(p_.y, ImagePlace{first.channel + box * p_.box_bytes / 2, first.column, first.row + i, first.image},
                      out_ + buffer * p_.out_bytes + (box * rows + i) * p_.out_row_bytes);
        }
      }
      commit_stores();
      wait_for_stores();
      arrive(stored_ + buffer);
      buffer ^= 1;
      next(slot, parity);
    }
  }

  FUSEDSC_DEVICE void next(int& slot, int& parity) const {
    if (++slot < p_.stages) return;
    slot = 0;
    parity ^= 1;
  }

  // --------------------------------------------------------------------------------------------- by warps that compute

  FUSEDSC_DEVICE void aim() {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, runs = p_.runs();
    const int part = warp_ / runs, group = warp_ - part * runs, box_runs = p_.box_bytes / 16;
    const int box = group / box_runs, run = group - box * box_runs;
    channel_ = first_channel_ + group * 8;
    const int images = p_.product_images(), first_image = part * images;
    const int tile_place = (box * p_.images + first_image) * p_.image_bytes();
    prologue_.run = run;
    prologue_.images = images;
    prologue_.tile_place = tile_place;
    prologue_.channels = channels_;
    outputs_.channels = channels_;
    outputs_.channel = channel_;
    outputs_.first_image = first_image;

    // Patches of no use do as the first.
    const int width = least(p_.tile_columns, p_.output_width), image = g / least(p_.image_lines, 8);
    const int patch = g % p_.image_lines;
    const bool exists = 4 * patch < width, second_exists = p_.image_lines < 16 || 4 * patch + 32 < width;
    const int from = exists ? 4 * patch * kStride : 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int position = from + t + 4 * i;
      places_[i] = tile_place + image * p_.image_bytes() + position * p_.box_bytes + place_of_run(p_, run, position);
    }
    half_ = second_exists ? p_.half_bytes : 0;
    const int column = 4 * patch + t;
    outputs_.aim(box * p_.out_rows(kStride) * p_.out_row_bytes +
                 ((first_image + image) * p_.out_pitch + column) * p_.box_bytes + place_of_run(p_, run, column));
  }

  /// The weights of the warp's channels, and what else belongs to them. Beyond the last channel they are zeros.
  FUSEDSC_DEVICE void load_coefficients() {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, high = g % 2;
    const bool exists = channel_ < p_.channels;
    const T* weight = elements_of<T>(p_.weight) + (exists ? channel_ + high : 0) * p_.weight.image;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int kw = t + 4 * i - g / 2 * kStride;
      const bool is_tap = exists && kw >= 0 && kw < kKernel;
      const T* column = weight + (is_tap ? kw : 0) * static_cast<int>(p_.weight.column);
#pragma unroll
      for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const std::uint32_t value = column[(exists ? 2 * pair : 0) * p_.weight.image + kh * static_cast<int>(p_.weight.row)].bits;
          weights_[kh][pair][i] = is_tap ? value << 16 * high : 0;
        }
      }
    }
    if constexpr (kSeams == DepthwiseSeams::none) return;
    if (lane < 8) {
      const int c = channel_ + lane;
      const auto of = [&](const float* from, float without) { return from != nullptr && exists ? from[c] : without; };
      channels_->bias[lane] = p_.bias != nullptr && exists ? to_accumulator(static_cast<const T*>(p_.bias)[c]) : 0.0f;
      channels_->scale[lane] = of(p_.scale, 1.0f);
      channels_->shift[lane] = of(p_.shift, 0.0f);
      channels_->epilogue_scale[lane] = of(p_.epilogue_scale, 1.0f);
      channels_->epilogue_shift[lane] = of(p_.epilogue_shift, 0.0f);
    }
    warp_barrier();
  }

  FUSEDSC_DEVICE void compute() {
    aim();
    load_coefficients();
    Sums sums[kKept];
    begin_image(sums);
    int slot = 0, parity = 0, buffer = 0, buffer_parity = 1;
#pragma unroll 1
    for (bool is_last = false; !is_last;) {
      wait(arrived_ + slot, parity);
      const DepthwiseTileNote& at = notes_[slot];
      outputs_.begin_tile(at);
      unsigned char* tile = memory_ + slot * p_.tile_bytes;
      if constexpr (kSeams != DepthwiseSeams::none) {
        if (p_.has_prologue) {
          prologue_.apply(tile, kStride, at);
          warp_barrier();
        }
      }
      wait(stored_ + buffer, buffer_parity);
      unsigned char* out = out_ + buffer * p_.out_bytes;
      // Rows of padding are passed over.
      const int begin = at.begin, end = at.end;
      const int inside = least(p_.rows, (p_.input_height - at.input_row + kStride - 1) / kStride * kStride);
      int row = at.output_row, r = 0;
      if (at.input_row < 0 && p_.padding_top < kKernel) {
        r = least(-at.input_row / kStride * kStride, inside);
        begin_image(sums);
        tile += r * p_.pitch * p_.box_bytes;
        out += r / kStride * p_.out_row_bytes;
        row += r / kStride;
      }
#pragma unroll 1
      for (; r < inside; r += kStride) {
        const typename Outputs::Row output = outputs_.row_of(row, row >= begin && row < end);
#pragma unroll
        for (int phase = 0; phase < kStride; ++phase) {
          add_row(tile, phase, sums, out, output);
          tile += p_.pitch * p_.box_bytes;
        }
        out += p_.out_row_bytes;
        ++row;
      }
#pragma unroll 1
      for (; r < p_.rows; r += kStride) {
        const bool exists = row >= begin && row < end;
        pass_row(sums, out, outputs_.row_of(row, exists), exists);
        out += p_.out_row_bytes;
        ++row;
      }
      is_last = at.is_last;
      publish();
      warp_barrier();
      if (thread_index() % 32 == 0) arrive(done_ + slot);
      buffer_parity ^= buffer;
      buffer ^= 1;
      next(slot, parity);
    }
    let_next_kernel_start();
  }

  /// A row of x, number `phase` of those that a row of outputs moves on by, to all rows of outputs that it belongs to.
  /// That which it completes goes to `out`.
  FUSEDSC_DEVICE void add_row(const unsigned char* row, int phase, Sums (&sums)[kKept], unsigned char* out,
                              const typename Outputs::Row& output) {
    // Of two groups of columns: what of each pair of channels is in neighbouring registers, as products want it. The
    // compiler shall not know that nothing else changes: it would copy anew for every product.
    std::uint32_t operands[kPairs][4], last[kPairs][2];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Run run = *reinterpret_cast<const Run*>(row + places_[i] + (half == 0 ? 0 : half_));
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const std::uint32_t word = reordered(run.elements[pair], p_.same_order);
          if (i < 2) operands[pair][2 * i + half] = word;
          else last[pair][half] = word;
        }
      }
    }
    Sums finished;
#pragma unroll
    for (int age = kKept; age >= 0; --age) {
      const int kh = phase + age * kStride;
      if (kh >= kKernel) continue;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float sum[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          sum[v] = phase > 0 ? sums[age % kKept][pair][v] : age == 0 ? 0.0f : sums[age - 1][pair][v];
        }
        const std::uint32_t(&a)[4] = operands[pair];
        const std::uint32_t(&weights)[kGroups] = weights_[kh][pair];
        wave_multiply_add(sum, {{a[0], a[1], a[2], a[3]}, {weights[0], weights[1]}}, T());
        if constexpr (kGroups == 3) wave_multiply_add_half(sum, last[pair], weights[2], T());
        float(&to)[4] = phase == 0 && age == kKept ? finished[pair] : sums[age % kKept][pair];
#pragma unroll
        for (int v = 0; v < 4; ++v) to[v] = sum[v];
      }
    }
    if (phase == 0) outputs_.finish(out, output, finished, prologue_);
  }

  FUSEDSC_DEVICE static void begin_image(Sums (&sums)[kKept]) {
#pragma unroll
    for (int i = 0; i < kKept * kPairs * 4; ++i) sums[i / (kPairs * 4)][i / 4 % kPairs][i % 4] = 0;
  }

  /// Instead of add_row, of padding below an image: there is nothing to add, but maybe a row of outputs to finish.
  FUSEDSC_DEVICE void pass_row(Sums (&sums)[kKept], unsigned char* out, const typename Outputs::Row& output,
                               bool exists) {
    Sums finished;
#pragma unroll
    for (int i = 0; i < kPairs * 4; ++i) {
      const int pair = i / 4, v = i % 4;
      finished[pair][v] = sums[kKept - 1][pair][v];
#pragma unroll
      for (int age = kKept - 1; age > 0; --age) sums[age][pair][v] = sums[age - 1][pair][v];
      sums[0][pair][v] = 0;
    }
    if (exists) outputs_.finish(out, output, finished, prologue_);
  }

  const DepthwiseTilesParameters& p_;
  int warp_, split_, first_channel_;
  unsigned char *memory_, *out_;
  Barrier *arrived_, *done_, *stored_;   ///< tiles have come; warps are done with them; outputs are read
  DepthwiseTileNote* notes_;             ///< of the tiles
  DepthwiseChannels* channels_;          ///< of the warp
  int channel_ = 0;                      ///< of the warp, its first
  int places_[kGroups], half_ = 0;       ///< of the thread, in tiles of x: its columns, and from one half of the
                                         ///< patches to the other
  std::uint32_t weights_[kKernel][kPairs][kGroups];
  DepthwiseTilePrologue<T> prologue_;
  Outputs outputs_;
};

}  // namespace fusedsc::gpu::hopper
