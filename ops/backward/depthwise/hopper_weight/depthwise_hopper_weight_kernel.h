/// Depthwise convolution on Hopper GPUs, weight and bias gradients alone, 3x3 and 5x5, 16 bits, channels neighbours in
/// memory. Tiles of x and of grad_y come to shared memory by TMA, some ahead of their use.
///
/// Multiplied is by tensor cores: A has 8 channels of x as two taps see them (16 rows) at 16 positions of a row, B the
/// same 8 channels of grad_y there. Of the product only the diagonals are wanted, each channel with itself; even so an
/// instruction does what 8 fused multiply-adds per thread do, without conversions. A window's row has an odd number of
/// taps: beside the last one A has ones, whose products are the bias's gradient.
///
/// Each warp owns 8 channels, and keeps all sums of their taps in registers. A row of x is read once, for all rows of
/// grad_y whose windows cover it, which are in registers too.
#pragma once

#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_copies.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_sum.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseWeightTilesParameters : DepthwiseTilesShape {
  TensorMap x, grad_y;
  DepthwiseWeightSums sums;                         ///< its rows: [split][image part]
  int grad_bytes = 0;                               ///< of a tile of grad_y: [image][row][column][channel]
  int grad_half_bytes = 0, grad_product_bytes = 0;  ///< as half_bytes and product_bytes, of grad_y
  int grad_segments = 0, grad_segment_bytes = 0;    ///< if it is cut into these: [segment][image][row][byte]

  FUSEDSC_HOST_DEVICE int stage_bytes() const { return tile_bytes + grad_bytes; }
  FUSEDSC_HOST_DEVICE int memory_bytes() const {
    return 1024 + stages * stage_bytes() + stages * static_cast<int>(2 * sizeof(Barrier) + sizeof(DepthwiseTileNote));
  }
};

/// kProducts: of 16 positions, that a warp has side by side. kInSegments: rows of tiles are cut into segments, not into
/// boxes of channels; images are wide then. kInClusters: blocks with the same channels are in clusters, which add up
/// their sums.
template <class T, int kKernel, int kStride, int kProducts, bool kInSegments, bool kInClusters>
class DepthwiseWeightTiles {
 public:
  static constexpr int kRows = kKernel * kKernel + 1;  ///< of partial sums

  FUSEDSC_DEVICE static void run(const DepthwiseWeightTilesParameters& p) {
    DepthwiseWeightTiles tiles(p);
    if (tiles.warp_ == p.warps()) {
      tiles.copy();
      if constexpr (kInClusters) leave_tiles();
    } else {
      tiles.compute();
    }
    if constexpr (kInClusters) add_up_cluster<T, kKernel>(p, tiles.memory_, tiles.split_, tiles.first_channel_);
  }

 private:
  static constexpr int kPairs = kKernel / 2;                 ///< of taps of a window's row; and one more tap
  static constexpr int kLive = (kKernel - 1) / kStride + 1;  ///< rows of grad_y whose windows cover a row of x
  static constexpr int kPairsOfProducts = (kProducts + 1) / 2;
  using Cursor = DepthwiseTileCursor<DepthwiseWindow<kKernel, kStride>>;
  /// Of two products: positions 0 to 7 and 8 to 15 of the first, then of the second.
  using GradRow = std::uint32_t[kPairsOfProducts][4];

  FUSEDSC_DEVICE explicit DepthwiseWeightTiles(const DepthwiseWeightTilesParameters& p) : p_(p) {
    warp_ = uniform(thread_index() / 32);
    split_ = kInClusters ? split_in_cluster(p, first_channel_) : split_of_block(p, first_channel_);
    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory_ = memory + padding_before_tiles(memory);
    arrived_ = reinterpret_cast<Barrier*>(memory_ + p.stages * p.stage_bytes());
    done_ = arrived_ + p.stages;
    notes_ = reinterpret_cast<DepthwiseTileNote*>(done_ + p.stages);
  }

  /// Of a tile of x.
  FUSEDSC_DEVICE int row_bytes() const { return kInSegments ? p_.segment_bytes : p_.pitch * p_.box_bytes; }
  FUSEDSC_DEVICE int image_bytes() const { return p_.rows * row_bytes(); }
  /// Of segments of grad_y.
  FUSEDSC_DEVICE int grad_image_bytes() const { return p_.rows / kStride * p_.grad_segment_bytes; }

  // --------------------------------------------------------------------------------------- by the thread that copies

  /// Notes the tile that is next for the warps that compute, and moves on. The rows of grad_y are those that begin with
  /// the tile's rows of x.
  FUSEDSC_DEVICE DepthwiseTileNote announce(Cursor& at, int slot) const {
    const int row = at.begin + at.row / kStride;
    DepthwiseTileNote note{at.image, at.column, at.input_row(), row, at.begin, at.end, at.is_first, 0};
    at.next();
    note.is_last = !at.exists;
    notes_[slot] = note;
    const int x_bytes = p_.images * image_bytes();
    expect(arrived_ + slot, kInSegments ? p_.segments * x_bytes + p_.grad_segments * p_.images * grad_image_bytes()
                                        : x_bytes + p_.grad_bytes);
    return note;
  }

  FUSEDSC_DEVICE void start_copies(const DepthwiseTileNote& note, int slot) const {
    const int column = DepthwiseWindow<kKernel, kStride>::first_column(p_, note.column);
    const ImagePlace x{first_channel_, column, note.input_row, note.image};
    const ImagePlace grad{first_channel_, note.column, note.output_row, note.image};
    unsigned char* stage = memory_ + slot * p_.stage_bytes();
    if constexpr (kInSegments) return start_segments(stage, x, grad, arrived_ + slot);
    start_load(stage, p_.x, x, arrived_ + slot);
    start_load(stage + p_.tile_bytes, p_.grad_y, grad, arrived_ + slot);
  }

  FUSEDSC_DEVICE void start_segments(unsigned char* stage, const ImagePlace& x, const ImagePlace& grad,
                                     Barrier* arrived) const {
    const int bytes = p_.images * image_bytes(), grad_bytes = p_.images * grad_image_bytes();
#pragma unroll 1
    for (int s = 0; s < p_.segments; ++s) {
      const int byte = x.column * p_.box_bytes + s * p_.segment_bytes;
      start_load(stage + s * bytes, p_.x, ImagePlace{byte / kRowUnit, 0, x.row, x.image}, arrived);
    }
#pragma unroll 1
    for (int s = 0; s < p_.grad_segments; ++s) {
      const int byte = grad.column * p_.box_bytes + s * p_.grad_segment_bytes;
      start_load(stage + p_.tile_bytes + s * grad_bytes, p_.grad_y,
                 ImagePlace{byte / kRowUnit, 0, grad.row, grad.image}, arrived);
    }
  }

  FUSEDSC_DEVICE void copy() const {
    copy_weight_tiles<Cursor>(
        p_, split_, arrived_, done_, [&](Cursor& at, int slot) { return announce(at, slot); },
        [&](const DepthwiseTileNote& note, int slot) { start_copies(note, slot); });
  }

  // --------------------------------------------------------------------------------------------- by warps that compute

  FUSEDSC_DEVICE void aim() {
    const int lane = thread_index() % 32, matrix = lane / 8, runs = p_.runs(), box_bytes = p_.box_bytes;
    part_ = warp_ / runs;
    const int run = warp_ - part_ * runs, first_image = p_.images / p_.image_parts * part_;
    channel_ = first_channel_ + run * 8;
    // Matrices of A: both taps at positions 0 to 7, then at 8 to 15; of the last tap, of one product and of the next.
#pragma unroll
    for (int pair = 0; pair <= kPairs; ++pair) {
      const bool is_last = pair == kPairs;
      const int tap = 2 * pair + (is_last ? 0 : matrix % 2), position = lane % 8 * kStride + tap;
      const int half = is_last ? matrix % 2 : matrix / 2, product = is_last ? matrix / 2 : 0;
      const int place = kInSegments ? place_in_segments(p_, p_.segment_bytes, p_.images * image_bytes(), run, position)
                                    : position * box_bytes + swizzled_run(box_bytes, run, position);
      places_[pair] = first_image * image_bytes() + half * p_.half_bytes + product * p_.product_bytes + place;
    }
    grad_place_ = p_.tile_bytes + first_image * (p_.grad_bytes / p_.images) + matrix % 2 * p_.grad_half_bytes +
                  matrix / 2 * p_.grad_product_bytes + lane % 8 * box_bytes + swizzled_run(box_bytes, run, lane % 8);
    if constexpr (kInSegments) {
      const int bytes = grad_image_bytes();
      grad_place_ = p_.tile_bytes + first_image * bytes + matrix % 2 * p_.grad_half_bytes +
                    matrix / 2 * p_.grad_product_bytes +
                    place_in_segments(p_, p_.grad_segment_bytes, p_.images * bytes, run, lane % 8);
    }
    if constexpr (kProducts % 2 == 1) {  // nothing there: the lanes read what the others do
      beyond_ = matrix / 2 * p_.product_bytes;
      grad_beyond_ = matrix / 2 * p_.grad_product_bytes;
    }
  }

  FUSEDSC_DEVICE void compute() {
    // Positions beyond the right edge read what follows, to multiply it by zeros; behind the last row these are here.
    const int filled = (kInSegments ? p_.segments : 1) * p_.images * image_bytes();
    clear_behind_copies(memory_, p_.stages, p_.stage_bytes(), filled, p_.tile_bytes, p_.warps() * 32);
    aim();
    group_barrier(0, threads_of_block(p_));
    wait_for_previous_kernel();
    let_next_kernel_start();
#pragma unroll
    for (int i = 0; i < kKernel * (kPairs + 1) * 4; ++i) {
      sums_[i / 4 / (kPairs + 1)][i / 4 % (kPairs + 1)][i % 4] = 0;
    }
    GradRow grads[kLive];  // the newest first
    StageTurn turn;
#pragma unroll 1
    for (bool is_last = false; !is_last;) {
      wait(arrived_ + turn.slot, turn.parity);
      const DepthwiseTileNote& at = notes_[turn.slot];
      is_last = read_entry(at.is_last);
      if (read_entry(at.is_first)) {
#pragma unroll
        for (int age = 0; age < kLive; ++age) clear(grads[age]);
      }
      const unsigned char* tile = memory_ + turn.slot * p_.stage_bytes();
      const unsigned char* grad_tile = tile + grad_place_;
      int row = read_entry(at.output_row), input_row = read_entry(at.input_row);
      const int end = read_entry(at.end);
#pragma unroll 1
      for (int r = 0; r < p_.rows; r += kStride) {
#pragma unroll
        for (int age = kLive - 1; age > 0; --age) {
#pragma unroll
          for (int i = 0; i < kPairsOfProducts * 4; ++i) grads[age][i / 4][i % 4] = grads[age - 1][i / 4][i % 4];
        }
        if (row < end) {
#pragma unroll
          for (int i = 0; i < kPairsOfProducts; ++i) {
            const int beyond = 2 * i + 1 < kProducts ? 0 : grad_beyond_;
            load_matrices<true>(grad_tile + 2 * i * p_.grad_product_bytes - beyond, grads[0][i]);
          }
        } else {
          clear(grads[0]);
        }
#pragma unroll
        for (int phase = 0; phase < kStride; ++phase) {
          if (static_cast<unsigned>(input_row) < static_cast<unsigned>(p_.input_height)) {
            multiply_row(tile, phase, grads);
          } else if (phase == 0) {
            add_bias(grads[0]);
          }
          tile += row_bytes();
          ++input_row;
        }
        grad_tile += kInSegments ? p_.grad_segment_bytes : p_.out_pitch * p_.box_bytes;
        ++row;
      }
      arrive_as_warp(done_ + turn.slot);
      turn.next(p_.stages);
    }
    if constexpr (kInClusters) leave_tiles();
    leave_sums();
  }

  FUSEDSC_DEVICE static void clear(GradRow& row) {
#pragma unroll
    for (int i = 0; i < kPairsOfProducts * 4; ++i) row[i / 4][i % 4] = 0;
  }

  /// A row of x, number `phase` of those that a row of grad_y moves on by.
  FUSEDSC_DEVICE void multiply_row(const unsigned char* row, int phase, const GradRow (&grads)[kLive]) {
    constexpr std::uint32_t kOnes = ones(T());
#pragma unroll
    for (int first = 0; first < kProducts; first += 2) {
      std::uint32_t last[4];
      const int beyond = first + 1 < kProducts ? 0 : beyond_;
      load_matrices<true>(row + places_[kPairs] + first * p_.product_bytes - beyond, last);
#pragma unroll
      for (int i = 0; i < 2 && first + i < kProducts; ++i) {
        std::uint32_t pairs[kPairs][4];
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          load_matrices<true>(row + places_[pair] + (first + i) * p_.product_bytes, pairs[pair]);
        }
#pragma unroll
        for (int age = 0; age < kLive; ++age) {
          const int kh = phase + age * kStride;
          if (kh >= kKernel) continue;
          const std::uint32_t low = grads[age][first / 2][2 * i], high = grads[age][first / 2][2 * i + 1];
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair) {
            const std::uint32_t(&a)[4] = pairs[pair];
            wave_multiply_add(sums_[kh][pair], {{a[0], a[1], a[2], a[3]}, {low, high}}, T());
          }
          wave_multiply_add(sums_[kh][kPairs], {{last[2 * i], kOnes, last[2 * i + 1], kOnes}, {low, high}}, T());
        }
      }
    }
  }
  /// Instead, where the row is padding: the ones beside the first row of taps still have something to multiply.
  FUSEDSC_DEVICE void add_bias(const GradRow& grads) {
    constexpr std::uint32_t kOnes = ones(T());
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      wave_multiply_add(sums_[0][kPairs],
                        {{0, kOnes, 0, kOnes}, {grads[i / 2][i % 2 * 2], grads[i / 2][i % 2 * 2 + 1]}}, T());
    }
  }
  FUSEDSC_DEVICE static constexpr std::uint32_t ones(Float16) { return 0x3c003c00u; }
  FUSEDSC_DEVICE static constexpr std::uint32_t ones(BFloat16) { return 0x3f803f80u; }

  /// Of the lanes that have the diagonals: those of channel g have it in their columns 2t and 2t + 1.
  FUSEDSC_DEVICE void leave_sums() const {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
    if (g / 2 != t || channel_ >= p_.channels) return;
    const auto diagonal = [&](const float(&sums)[4], int half) {
      return g % 2 == 0 ? sums[2 * half] : sums[2 * half + 1];
    };
    if constexpr (kInClusters) {
      const int channel = channel_ - first_channel_ + g;
      Aligned<float, 4>* to = place_of_sums<kKernel>(p_, memory_, part_, channel);
      leave(diagonal, [&](int tap, float sum) { to[tap].elements[channel % 4] = sum; });
    } else if (p_.sums.partials == nullptr) {
      leave(diagonal, [&](int tap, float sum) { leave_gradient<T, kKernel>(p_.sums, tap, channel_ + g, sum); });
    } else {
      float* to = p_.sums.partials +
                  (static_cast<std::int64_t>(split_) * p_.image_parts + part_) * kRows * p_.channels + channel_ + g;
      leave(diagonal, [&](int tap, float sum) { to[static_cast<std::int64_t>(tap) * p_.channels] = sum; });
    }
  }

  template <class Diagonal, class Leave>
  FUSEDSC_DEVICE void leave(const Diagonal& diagonal, const Leave& leave_one) const {
#pragma unroll
    for (int tap = 0; tap < kRows - 1; ++tap) {
      const int kw = tap % kKernel;
      leave_one(tap, diagonal(sums_[tap / kKernel][kw / 2], kw % 2));
    }
    leave_one(kRows - 1, diagonal(sums_[0][kPairs], 1));
  }

  const DepthwiseWeightTilesParameters& p_;
  int warp_, split_, first_channel_;
  unsigned char* memory_;
  Barrier *arrived_, *done_;    ///< tiles have come; warps are done with them
  DepthwiseTileNote* notes_;    ///< of the tiles
  int part_ = 0, channel_ = 0;  ///< of the warp: its part of the images, its first channel
  int places_[kPairs + 1], grad_place_ = 0;
  int beyond_ = 0, grad_beyond_ = 0;  ///< from the last product of an odd number to where the next would be
  float sums_[kKernel][kPairs + 1][4];
};

}  // namespace fusedsc::gpu::hopper
