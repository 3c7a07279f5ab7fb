/// Depthwise convolution on Hopper GPUs, weight and bias gradients alone, 3x3, 5x5 and 7x7 at stride 1, 16 bits,
/// channels neighbours in memory. Tiles of x and of grad_y come to shared memory by TMA, some ahead of their use.
///
/// Multiplied is by tensor cores, one channel at a time: A has two rows of x, 8 columns of each, in 16 patches of an
/// image; B the two rows of 4 columns of grad_y there, whose windows reach over them. A product has every element of x
/// times every one of grad_y, summed over the patches; each tap is the sum of some of a diagonal, which is for the end.
/// 8 columns of x have 7x7 windows of 2 columns of grad_y: then B has four rows of these, of which two have been there
/// before, and a step of x wants those of this step and of two steps ago.
///
/// Each warp owns 4 channels, and keeps all sums in registers. Rows of x are read once, for all rows of grad_y whose
/// windows cover them, which are in registers too.
#pragma once

#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_copies.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_sum.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseWeightPatchesParameters : DepthwiseTilesShape {
  TensorMap x, grad_y;
  DepthwiseWeightSums sums;                           ///< its rows: [split][image part]
  int grad_pitch = 0, grad_rows = 0, grad_bytes = 0;  ///< of a tile of grad_y: [box][image][row][column][channel]
  int x_jumps[2] = {}, grad_jumps[2] = {};            ///< from patches 0 to 3 to patches 4 to 7, and 8 to 11

  FUSEDSC_HOST_DEVICE int warps() const { return 2 * runs() * image_parts; }
  FUSEDSC_HOST_DEVICE int stage_bytes() const { return tile_bytes + grad_bytes; }
  FUSEDSC_HOST_DEVICE int memory_bytes() const {
    return 1024 + stages * stage_bytes() + stages * static_cast<int>(2 * sizeof(Barrier) + sizeof(DepthwiseTileNote));
  }
};

/// kInClusters: blocks with the same channels are in clusters, which add up their sums.
template <class T, int kKernel, bool kInClusters>
class DepthwiseWeightPatches {
 public:
  static constexpr int kChannels = 4;                           ///< of a warp
  static constexpr int kRows = 2;                               ///< of a step of x
  static constexpr int kPatch = weight_patch_columns(kKernel);  ///< columns of grad_y
  static constexpr int kGradRows = 8 / kPatch;                  ///< of grad_y, that a product has
  /// Products whose windows cover a step of x: each has the rows of grad_y of kApart steps after the one before.
  static constexpr int kApart = kGradRows / kRows, kProducts = (kKernel + kRows - 2) / kGradRows + 1;
  static constexpr int kLive = (kProducts - 1) * kApart + 1;  ///< steps that rows of grad_y are in registers
  static constexpr int kLead = weight_patch_lead(kKernel);    ///< rows of grad_y before those that a step brings

  FUSEDSC_DEVICE static void run(const DepthwiseWeightPatchesParameters& p) {
    DepthwiseWeightPatches tiles(p);
    if (tiles.warp_ == p.warps()) {
      tiles.copy();
      if constexpr (kInClusters) leave_tiles();
    } else {
      tiles.compute();
      if constexpr (kInClusters) leave_tiles();
      tiles.leave_sums();
    }
    if constexpr (kInClusters) add_up_cluster<T, kKernel>(p, tiles.memory_, tiles.split_, tiles.first_channel_);
  }

 private:
  using Cursor = DepthwiseTileCursor<DepthwiseWindow<kKernel, 1>>;
  using Pairs = Aligned<std::uint32_t, 2>;  ///< of a position: two pairs of channels
  using Grads = std::uint32_t[kChannels][2];

  FUSEDSC_DEVICE explicit DepthwiseWeightPatches(const DepthwiseWeightPatchesParameters& p) : p_(p) {
    warp_ = uniform(thread_index() / 32);
    split_ = kInClusters ? split_in_cluster(p, first_channel_) : split_of_block(p, first_channel_);
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory_ = memory + padding_before_tiles(memory);
    notes_ = reinterpret_cast<DepthwiseTileNote*>(memory_ + p.stages * p.stage_bytes());
    arrived_ = reinterpret_cast<Barrier*>(notes_ + p.stages);
    done_ = arrived_ + p.stages;
  }

  // --------------------------------------------------------------------------------------- by the thread that copies

  FUSEDSC_DEVICE int box_bytes_of_x() const { return p_.images * p_.image_bytes(); }
  FUSEDSC_DEVICE int box_bytes_of_grads() const { return p_.images * p_.grad_rows * p_.grad_pitch * p_.box_bytes; }

  /// Notes the tile that is next for the warps that compute, and moves on. The rows of grad_y are those that begin with
  /// the tile's rows of x, or kLead earlier.
  FUSEDSC_DEVICE DepthwiseTileNote announce(Cursor& at, int slot) const {
    const int row = at.begin + at.row;
    DepthwiseTileNote note{at.image, at.column, at.input_row(), row, at.begin, at.end, at.is_first, 0};
    at.next();
    note.is_last = !at.exists;
    notes_[slot] = note;
    expect(arrived_ + slot, p_.boxes * (box_bytes_of_x() + (row - kLead < note.end ? box_bytes_of_grads() : 0)));
    return note;
  }

  FUSEDSC_DEVICE void start_copies(const DepthwiseTileNote& note, int slot) const {
    const int column = DepthwiseWindow<kKernel, 1>::first_column(p_, note.column);
    unsigned char* stage = memory_ + slot * p_.stage_bytes();
#pragma unroll 1
    for (int box = 0; box < p_.boxes; ++box) {
      const int channel = first_channel_ + box * p_.box_bytes / 2;
      start_load(stage + box * box_bytes_of_x(), p_.x, ImagePlace{channel, column, note.input_row, note.image},
                 arrived_ + slot);
      if (note.output_row - kLead >= note.end) continue;
      start_load(stage + p_.tile_bytes + box * box_bytes_of_grads(), p_.grad_y,
                 ImagePlace{channel, note.column, note.output_row - kLead, note.image}, arrived_ + slot);
    }
  }

  FUSEDSC_DEVICE void copy() const {
    copy_weight_tiles<Cursor>(
        p_, split_, arrived_, done_, [&](Cursor& at, int slot) { return announce(at, slot); },
        [&](const DepthwiseTileNote& note, int slot) { start_copies(note, slot); });
  }

  // --------------------------------------------------------------------------------------------- by warps that compute

  FUSEDSC_DEVICE void aim() {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, runs = p_.runs();
    const int half = warp_ % 2, part = warp_ / 2 / runs, group = warp_ / 2 - part * runs;
    part_ = part;
    channel_ = first_channel_ + group * 8 + half * kChannels;
    const int box_runs = p_.box_bytes / 16, box = group / box_runs, run = group - box * box_runs;
    const int patch = t % p_.image_lines, image = part * p_.product_images() + t / p_.image_lines;
    const int x_position = kPatch * patch + g;
    x_place_ = (box * p_.images + image) * p_.image_bytes() + x_position * p_.box_bytes +
               place_of_run(p_, run, x_position) + 8 * half;
    grad_row_ = g / kPatch;
    const int grad_position = kPatch * patch + g % kPatch;
    grad_place_ =
        p_.tile_bytes +
        (((box * p_.images + image) * p_.grad_rows + grad_row_) * p_.grad_pitch + grad_position) * p_.box_bytes +
        place_of_run(p_, run, grad_position) + 8 * half;
  }

  FUSEDSC_DEVICE void compute() {
    // Patches beyond the right edge read what follows, to multiply it by zeros; behind the last row these are here.
    const int filled = p_.boxes * p_.images * p_.image_bytes();
    clear_behind_copies(memory_, p_.stages, p_.stage_bytes(), filled, p_.tile_bytes, p_.warps() * 32);
    aim();
    group_barrier(0, threads_of_block(p_));
    wait_for_previous_kernel();
    let_next_kernel_start();
#pragma unroll
    for (int i = 0; i < kProducts * kChannels * 4; ++i) sums_[i / (kChannels * 4)][i / 4 % kChannels][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) bias_[i] = 0;
    Grads grads[kLive];
    StageTurn turn;
#pragma unroll 1
    for (bool is_last = false; !is_last;) {
      wait(arrived_ + turn.slot, turn.parity);
      const DepthwiseTileNote& at = notes_[turn.slot];
      is_last = read_entry(at.is_last);
      if (read_entry(at.is_first)) {
#pragma unroll
        for (int i = 0; i < kLive; ++i) clear(grads[i]);
      }
      const unsigned char* tile = memory_ + turn.slot * p_.stage_bytes() + x_place_;
      const unsigned char* grad_tile = memory_ + turn.slot * p_.stage_bytes() + grad_place_;
      const int begin = kLead > 0 ? read_entry(at.begin) : 0;  // rows before it are another piece's
      int row = read_entry(at.output_row) + grad_row_ - kLead - begin, input_row = read_entry(at.input_row);
      const int end = read_entry(at.end) - begin, row_bytes = p_.pitch * p_.box_bytes;
#pragma unroll 1
      for (int r = 0; r < p_.rows; r += kRows * kLive) {
#pragma unroll
        for (int i = 0; i < kLive; ++i) {
          const bool exists = kLead > 0 ? static_cast<unsigned>(row) < static_cast<unsigned>(end) : row < end;
          if (exists) load_grads(grad_tile, grads[i]);
          else clear(grads[i]);
          if (input_row > -kRows && input_row < p_.input_height) multiply_rows(tile, row_bytes, i, grads);
          tile += kRows * row_bytes;
          grad_tile += kRows * p_.grad_pitch * p_.box_bytes;
          row += kRows;
          input_row += kRows;
        }
      }
      arrive_as_warp(done_ + turn.slot);
      turn.next(p_.stages);
    }
  }

  FUSEDSC_DEVICE static void clear(Grads& grads) {
#pragma unroll
    for (int i = 0; i < kChannels * 2; ++i) grads[i / 2][i % 2] = 0;
  }

  /// Of two positions: pairs of what each channel has there.
  FUSEDSC_DEVICE static void sort(const Pairs& first, const Pairs& second, int place, std::uint32_t* to, int step) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const std::uint32_t a = first.elements[i / 2], b = second.elements[i / 2];
      to[i * step + place] = i % 2 == 0 ? (a & 0xffffu) | b << 16 : a >> 16 | (b & 0xffff0000u);
    }
  }

  FUSEDSC_DEVICE void load_grads(const unsigned char* from, Grads& to) {
    const auto at = [&](int jump) { return *reinterpret_cast<const Pairs*>(from + jump); };
    sort(at(0), at(p_.grad_jumps[0]), 0, &to[0][0], 2);
    sort(at(p_.grad_jumps[1]), at(p_.grad_jumps[0] + p_.grad_jumps[1]), 1, &to[0][0], 2);
    if (p_.sums.grad_bias == nullptr || grad_row_ < kLead) return;
#pragma unroll
    for (int i = 0; i < kChannels * 2; ++i) {
      float first, second;
      to_floats(to[i / 2][i % 2], first, second, T());
      bias_[i / 2] += first + second;
    }
  }

  /// Two rows of x, number `step` of those that grads go round in.
  FUSEDSC_DEVICE void multiply_rows(const unsigned char* from, int row_bytes, int step, const Grads (&grads)[kLive]) {
    std::uint32_t a[kChannels][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto at = [&](int jump) { return *reinterpret_cast<const Pairs*>(from + r * row_bytes + jump); };
      sort(at(0), at(p_.x_jumps[0]), r, &a[0][0], 4);
      sort(at(p_.x_jumps[1]), at(p_.x_jumps[0] + p_.x_jumps[1]), 2 + r, &a[0][0], 4);
    }
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const Grads& b = grads[(step - product * kApart + kLive) % kLive];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        wave_multiply_add(sums_[product][i], {{a[i][0], a[i][1], a[i][2], a[i][3]}, {b[i][0], b[i][1]}}, T());
      }
    }
  }

  // -------------------------------------------------------------------------------------------------- when all is done

  /// A tap is the sum of neighbours on a diagonal of a product, four or two: x's columns from it on and grad_y's, each
  /// pair of which is two lanes' neighbour. A lane has grad_y's columns 2t and 2t + 1, of its first row or the second;
  /// or of 2 columns those of row t.
  FUSEDSC_DEVICE void leave_sums() {
    constexpr int kSteps = kRows * kProducts;  // each product's first row of x, and its second
    float taps[kSteps][kChannels];
#pragma unroll
    for (int i = 0; i < kSteps * kChannels; ++i) {
      const int step = i / kChannels, c = i % kChannels, v = step % kRows * 2;
      const float(&sums)[4] = sums_[step / kRows][c];
      const float pair = sums[v] + of_later_lane(sums[v + 1], 4);
      taps[step][c] = kPatch == 4 ? pair + of_later_lane(pair, 9) : pair;
    }
    const int lane = thread_index() % 32, kw = lane / 4;
    const bool is_wanted = lane % 4 == 0 && kw < kKernel && channel_ < p_.channels;
#pragma unroll
    for (int kh = 0; kh < kKernel; ++kh) {
      Aligned<float, kChannels> sum;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if constexpr (kPatch == 4) {
          sum.elements[c] = taps[kh][c] + of_later_lane(taps[kh + 1][c], 2);
        } else {
          // Of x's first row of a product and grad_y's row t, kh is 4 * product + 2 - t; of the second row one more.
          const int first = (kh + 1) / 4, second = kh / 4;
          sum.elements[c] = of_later_lane(taps[2 * first][c], 4 * first + 2 - kh) +
                            of_later_lane(taps[2 * second + 1][c], 4 * second + 3 - kh);
        }
      }
      if (is_wanted) leave(kh * kKernel + kw, sum);
    }
    if (p_.sums.grad_bias == nullptr) return;
    Aligned<float, kChannels> bias;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      bias.elements[c] = bias_[c];
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) bias.elements[c] += shuffle_xor(bias.elements[c], mask);
    }
    if (lane == 0 && channel_ < p_.channels) leave(kKernel * kKernel, bias);
  }

  FUSEDSC_DEVICE void leave(int tap, const Aligned<float, kChannels>& sum) const {
    if constexpr (kInClusters) {
      place_of_sums<kKernel>(p_, memory_, part_, channel_ - first_channel_)[tap] = sum;
    } else if (p_.sums.partials != nullptr) {
      const std::int64_t row = std::int64_t{split_ * p_.image_parts + part_} * p_.sums.taps + tap;
      *reinterpret_cast<Aligned<float, kChannels>*>(p_.sums.partials + row * p_.channels + channel_) = sum;
    } else {
      leave_gradients<T, kKernel>(p_.sums, tap, channel_, sum);
    }
  }

  const DepthwiseWeightPatchesParameters& p_;
  int warp_, split_, first_channel_;
  unsigned char* memory_;
  Barrier *arrived_, *done_;          ///< tiles have come; warps are done with them
  DepthwiseTileNote* notes_;          ///< of the tiles
  int x_place_ = 0, grad_place_ = 0;  ///< of the thread, in a stage: its first elements
  int grad_row_ = 0;                  ///< of the thread, of a step
  int part_ = 0, channel_ = 0;        ///< of the warp: its part of the images, its first channel
  float sums_[kProducts][kChannels][4], bias_[kChannels];
};

}  // namespace fusedsc::gpu::hopper
