/// Pointwise convolution on Hopper GPUs, both gradients from one pass over x: the gradient of 64 channels of x, and
/// that of their weights, for few outputs. A block goes through the positions, 64 at a time, which a warp of its own
/// has TMA bring: x, grad_y and the raw output. Warpgroups take turns. Rows of both products are
/// channels: the first one makes the gradient of x, transposed; threads that hold it read x likewise, and the activated
/// x in their registers is what the second product takes to add up the gradient of the weight. While one group is busy
/// with elements, others multiply. Groups of neighbouring channels may share grad_y and output.
///
/// The gradient prologue is linear and never applied to an element. Of x's gradient its scales belong to the weight, of
/// which there are two then; its offset, times the weight, is one number per channel. Of the weight's gradient it is
/// applied to sums, as in pointwise_hopper_weight_kernel.h.
///
/// Without a prologue (kPlain) x stays as it is, and the second product takes it from shared memory.
///
/// Weights that have windows (kWindows of them) are laid out and left otherwise: pointwise_hopper_k_resident_windows.h.
///
/// Of 32 channels and fewer, several positions lie in a row of 64: the weight repeats along its diagonal.
#pragma once

#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_elements.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

template <class T, int kDepth_, int kSharing_, int kSlices_, bool kHasOutput_, bool kPlain_, int kWindows_ = 0>
class PointwiseGradients
    : public PointwiseGradientsElements<
          PointwiseGradientsBlock<T, kDepth_, kSharing_, kSlices_, kHasOutput_, kPlain_, kWindows_>> {
  using Block = PointwiseGradientsBlock<T, kDepth_, kSharing_, kSlices_, kHasOutput_, kPlain_, kWindows_>;
  using Elements = PointwiseGradientsElements<Block>;

 public:
  using Elements::kDepth, Elements::kGroups, Elements::kHasOutput, Elements::kPlain, Elements::kProductThreads,
      Elements::kSharing, Elements::kSlices, Elements::kThreads, Elements::kWide, Elements::kWindows;
  using Elements::memory_bytes;

  FUSEDSC_DEVICE static void run(const PointwiseGradientsParameters& p) {
    static_assert(memory_bytes(kSlices) <= kMemoryLimit);  // a slice is never more than a round behind
    if (uniform(thread_index() / 128) == kGroups) {
      set_registers<false, kCopyRegisters>();
      PointwiseGradients(p).copy_all();
    } else {
      set_registers<true, kProductRegisters>();
      PointwiseGradients(p).multiply_all();
    }
  }

 private:
  using Elements::clear, Elements::copies_weight, Elements::empty, Elements::finish_tile, Elements::first_row,
      Elements::full, Elements::grad_tiles, Elements::is_leader, Elements::lane, Elements::left, Elements::load,
      Elements::own_channels, Elements::prepare, Elements::stage, Elements::start_weight, Elements::store_tile,
      Elements::vectors, Elements::warp, Elements::weight_barrier, Elements::weight_tile;
  using Elements::first_column_, Elements::group_, Elements::p_, Elements::share_, Elements::split_, Elements::splits_,
      Elements::slice_, Elements::tiles_;
  using Elements::kAll, Elements::kBoxBytes, Elements::kBoxes, Elements::kChannels, Elements::kColumns,
      Elements::kFirst, Elements::kLoadsAhead, Elements::kParts, Elements::kRows, Elements::kScales,
      Elements::kStageBytes, Elements::kSumFloats, Elements::kSumPitch, Elements::kTileBytes, Elements::kVectorSums,
      Elements::kXBytes;
  using typename Elements::Activated;
  using typename Elements::Channels;
  using typename Elements::Grad;
  using typename Elements::Sums;
  using Four = Aligned<float, 4>;

  /// Of a thread; what the copying group does not need the others have.
  static constexpr int kCopyRegisters = kGroups < 3 ? 24 : 32, kProductRegisters = kGroups == 1   ? 232
                                                                                   : kGroups == 2 ? 240
                                                                                   : kGroups == 3 ? 160
                                                                                                  : 112;

  using Elements::Elements;

  // ------------------------------------------------------------------------------------------- by the copying group

  /// turn: as multiply_all() counts them.
  FUSEDSC_DEVICE void start_tile(int tile, int turn) const {
    unsigned char* to = stage(turn < p_.stages ? turn : turn - p_.stages);
    const int row = first_row(tile);
    expect(full(turn), kStageBytes);
#pragma unroll 1
    for (int i = 0; i < kSharing; ++i, to += kTileBytes) {
      start_load(to, p_.x, first_column_ + i * kChannels, row, full(turn));
    }
#pragma unroll 1
    for (int box = 0; box < kBoxes; ++box, to += kBoxBytes) {
      start_load(to, p_.grad_y, box * kWide, row, full(turn));
      if (kHasOutput) start_load(to + kBoxes * kBoxBytes, p_.output, box * kWide, row, full(turn));
    }
  }

  FUSEDSC_DEVICE void copy_all() const {
    const bool copies = thread_index() == kProductThreads;
    if (copies) {
      for (int i = 0; i < p_.stages; ++i) {
        initialise(full(i));
        initialise(full(p_.stages + i));
        initialise(empty(i), kSharing * 4);
      }
      initialise(weight_barrier());
      publish();
    }
    block_barrier();
    if (!copies) return;
    prefetch(p_.x);
    prefetch(p_.grad_y);
    wait_for_previous_kernel();
    if (copies_weight()) start_weight();
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      if (tile >= p_.stages) wait(empty(turn.slot), turn.parity ^ 1);
      start_tile(tile, turn.slot + turn.parity * p_.stages);
      turn.next(p_.stages);
    }
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void multiply_all() {
    block_barrier();
    wait_for_previous_kernel();
    prepare();
    const Channels own = own_channels();
    const bool has_channels = first_column_ + share_ * kChannels + uniform(warp()) * 16 < p_.fold * p_.channels;
    SliceTurn turn = {slice_};
    int grad_tile = 0;
    Sums sums = {};
#pragma unroll 1
    for (int row = first_row(slice_); row < p_.rows; row += kSlices * splits_ * kRows) {
      const int slot = turn.slot(p_.stages);
      const unsigned char *x = stage(slot) + share_ * kTileBytes, *grad_y = stage(slot) + kXBytes;
      unsigned char* to = grad_tiles() + grad_tile;
      wait(full(turn.barrier), turn.parity);
      Grad grad;
      multiply_weight(grad, grad_y);
      if constexpr (kPlain) {
        multiply_plain(sums, x, grad_y);
        wait_for_products<1>();
        fence(grad);
        store_tile(grad, to);
      } else {
        Activated activated = {};
        if (kLoadsAhead && has_channels) load(activated, x);
        wait_for_products<0>();
        fence(grad);
        if (has_channels) {
          finish_tile(sums, own, grad, activated, x, to, p_.rows - row);
          if (!kHasOutput && p_.rows - row < kRows) clear(activated, p_.rows - row);
        }
        multiply_activated(sums, activated, grad_y);
      }
      publish();
      if (is_leader()) wait_for_stores();  // of the other tile
      group_barrier(group_);
      if (is_leader()) {
        start_store(p_.grad_x, first_column_ + share_ * kChannels, row, to);
        commit_stores();
      }
      grad_tile ^= kTileBytes;
      turn.next(kSlices, p_.stages);
      wait_for_products<0>();
      fence(sums.products);
      arrive_as_warp(empty(slot));
    }
    if (is_leader()) wait_for_stores();
    let_next_kernel_start();
    group_barrier<kProductThreads>(kGroups);  // all groups are done with the tiles, where the sums go
    if constexpr (kWindows > 0) {
      this->leave_windows(sums.products);
      group_barrier<kProductThreads>(kGroups);
      this->store_windows();
    } else {
      leave(sums);
      group_barrier<kProductThreads>(kGroups);
      store_partials();
    }
  }

  /// As StageTurn, of slices, which come to a stage in turns and may be ahead of each other: with two barriers for its
  /// phases a slice waits for one of them only when all earlier ones are over.
  struct SliceTurn {
    int barrier, parity = 0;

    FUSEDSC_DEVICE int slot(int stages) const { return barrier < stages ? barrier : barrier - stages; }
    FUSEDSC_DEVICE void next(int slices, int stages) {
      barrier += slices;
      if (barrier < 2 * stages) return;
      barrier -= 2 * stages;
      parity ^= 1;
    }
  };

  /// grad = the weight, transposed, times grad_y (and output), transposed.
  FUSEDSC_DEVICE void multiply_weight(Grad& grad, const unsigned char* grad_y) const {
    fence(grad);
    begin_products();
    const std::uint64_t rows = describe<128>(weight_tile(share_)), columns = describe<kWide * 2>(grad_y);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        const int place = (part * kBoxes + k / kWide) * kBoxBytes + k % kWide * 2;
        multiply<false, true>(grad, rows + (part * kDepth + k) * 128 / 16, columns + place / 16, part == 0 && k == 0,
                              T());
      }
    }
    commit_products();
    fence(grad);
  }

  /// sums += x, transposed, times grad_y and output; rows(step): of 16 positions, as multiply() takes them.
  template <bool... kOfSharedMemory, class Rows>
  FUSEDSC_DEVICE void multiply_rows(Sums& sums, const Rows& rows, const unsigned char* grad_y) const {
    fence(sums.products);
    begin_products();
    const std::uint64_t columns = describe_blocks<kWide * 2>(grad_y, kBoxBytes);
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const std::uint64_t from = columns + step * 16 * kWide * 2 / 16;
      auto& first = reinterpret_cast<float(&)[kFirst / 2]>(sums.products);
      multiply<true, kOfSharedMemory...>(first, rows(step), from, false, T());
      if constexpr (kAll > kFirst) {
        auto& second = reinterpret_cast<float(&)[(kAll - kFirst) / 2]>(sums.products[kFirst / 2]);
        multiply<true, kOfSharedMemory...>(second, rows(step), from + kFirst / kWide * kBoxBytes / 16, false, T());
      }
    }
    commit_products();
    fence(sums.products);
  }
  FUSEDSC_DEVICE void multiply_plain(Sums& sums, const unsigned char* x, const unsigned char* grad_y) const {
    const std::uint64_t rows = describe<128>(x);
    multiply_rows<true>(
        sums, [&](int step) { return rows + step * 16 * 128 / 16; }, grad_y);
  }
  FUSEDSC_DEVICE void multiply_activated(Sums& sums, const Activated& x, const unsigned char* grad_y) const {
    multiply_rows<>(
        sums, [&](int step) -> const std::uint32_t(&)[4] { return x[step]; }, grad_y);
  }

  /// To shared memory: [k][channel], with the gradient prologue, and both sums.
  FUSEDSC_DEVICE void leave(Sums& sums) const {
    float* own = left() + group_ * kSumFloats + uniform(warp()) * 16 + lane() / 4;
    const float* scales = vectors() + kScales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kHasOutput) sums.activated[half] = of_four_lanes(sums.activated[half]);
      if constexpr (kPlain) continue;
      sums.grad[half] = of_four_lanes(sums.grad[half]);
      sums.grad_times_centered[half] = of_four_lanes(sums.grad_times_centered[half]);
      if (lane() % 4 != 0) continue;
      own[kDepth * kSumPitch + half * 8] = sums.grad[half];
      own[(kDepth + 1) * kSumPitch + half * 8] = sums.grad_times_centered[half];
    }
#pragma unroll
    for (int i = 0; i < kDepth / 2; ++i) {
      const int k = i / 4 * 8 + lane() % 4 * 2 + i % 2, half = i / 2 % 2;
      float sum = sums.products[i];
      if constexpr (kHasOutput) {
        sum = sum * scales[k] +
              (sums.products[kDepth / 2 + i] * scales[kDepth + k] + sums.activated[half] * scales[2 * kDepth + k]);
      }
      own[k * kSumPitch + half * 8] = sum;
    }
  }

  FUSEDSC_DEVICE static float of_four_lanes(float value) {
    value += shuffle_xor(value, 1);
    return value + shuffle_xor(value, 2);
  }

  /// What the groups have left, added up; zeros in place of the splits that this tile of channels has not. A thread has
  /// four channels.
  FUSEDSC_DEVICE void store_partials() const {
    constexpr int kQuads = kColumns / 4, kAtOnce = kProductThreads / kQuads;
    const int column = thread_index() % kQuads * 4, lane = thread_index() / kQuads, rows = p_.outputs + kVectorSums;
    if (column >= p_.fold * p_.channels - first_column_) return;
    const int position = p_.fold == 1 ? 0 : column / p_.channels,
              channel = p_.fold == 1 ? first_column_ + column : column % p_.channels;
    const float* columns = left() + column / kChannels * kSumFloats + column % kChannels;
    const auto store = [&](int split, int row, const Four& sum) {
      const std::int64_t part = std::int64_t{split} * p_.fold + position;
      *reinterpret_cast<Four*>(p_.partials + (part * rows + row) * p_.channels + channel) = sum;
    };
    const int advance = p_.weight.first(kAtOnce);
    int first_channel = p_.weight.first(lane);
#pragma unroll 4
    for (int row = lane; row < rows; row += kAtOnce) {
      bool is_wanted = row >= p_.outputs;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        is_wanted = is_wanted || p_.weight.place(first_channel, channel + i) < p_.weight.width;
      }
      first_channel = p_.weight.next(first_channel, advance);
      const int k = row < p_.outputs ? position * p_.outputs + row : kDepth + row - p_.outputs;
      Four sum = {};
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const Four part = *reinterpret_cast<const Four*>(columns + slice * kSharing * kSumFloats + k * kSumPitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.elements[i] += part.elements[i];
      }
      if (is_wanted) store(split_, row, sum);  // else nobody reads it
    }
    for (int split = split_ + splits_; split < p_.splits; split += splits_) {
      for (int row = lane; row < rows; row += kAtOnce) store(split, row, {});
    }
  }
};

}  // namespace fusedsc::gpu::hopper
