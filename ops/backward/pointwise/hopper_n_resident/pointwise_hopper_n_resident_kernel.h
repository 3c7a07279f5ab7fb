/// Pointwise convolution on Hopper GPUs, input and weight gradient in one pass over grad_y and x, for a convolution
/// followed by BatchNorm, whose output need not be read (pointwise_hopper_n_resident_image.h). Likewise
///   grad_weight = grad_scale (grad_y^T x) + output_scale (weight x^T x) + offset sum(x).
///
/// For few channels, and outputs whose sums a warpgroup can keep: each group goes its own way through tiles
/// of 64 positions, which TMA brings, multiplies them both ways from where they lie, and keeps its own
/// sums.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_sums.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// kOutputs and kColumns: at least as many as there are outputs and channels.
template <class T, int kOutputs_, int kColumns_, int kGroups_>
class PointwiseNResidentProduct {
 public:
  static constexpr int kOutputs = kOutputs_, kColumns = kColumns_, kGroups = kGroups_;
  static constexpr int kOutputBlocks = (kOutputs + 63) / 64;
  static constexpr int kThreads = kGroups * 128, kSteps = (kColumns + 15) / 16;
  static constexpr int kWide = 32;                                           ///< columns of a copy of x
  static constexpr int kLastWide = (kOutputs + 31) / 32 % 2 == 0 ? 64 : 32;  ///< and of the last one of grad_y
  static constexpr int kQuads = kOutputBlocks * kColumns / 8;
  static constexpr PrepackedWeights kImage = PrepackedWeights::of(kOutputs, kSteps * 16, kWide * 2);
  static_assert(kColumns <= kWide);

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages, bool has_added) {
    const int tiles = tile_bytes(stages, has_added);
    return 1024 + kImageBytes + (tiles > kSumBytes ? tiles : kSumBytes) + kOnesBytes + barrier_bytes(stages) +
           kGroups * End::kVectorFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseNResidentParameters& p) {
    PointwiseNResidentProduct product(p);
    product.loop();
  }

 private:
  using End = NResidentEnd<T, kColumns, kSteps>;
  using Row = typename End::Row;  ///< sums of 64 rows
  static constexpr int kRowBytes = kWide * 2, kXBytes = 64 * kRowBytes, kBlockBytes = 64 * 128;
  static constexpr int kGradBytes = (kOutputBlocks - 1) * kBlockBytes + 64 * kLastWide * 2;
  static constexpr int kStageBytes = kGradBytes + kXBytes;
  static constexpr int kImageBytes = (kImage.bytes + 1023) / 1024 * 1024, kOnesBytes = 512;
  static constexpr int kSumBytes = kGroups * kQuads * 128 * 16;
  static_assert(2 * End::kSquareBytes <= kStageBytes);

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return (kGroups * (stages + 2) * 8 + 15) / 16 * 16;
  }
  FUSEDSC_HOST_DEVICE static constexpr int tile_bytes(int stages, bool has_added) {
    return kGroups * (stages * kStageBytes + (has_added ? 2 : 1) * kXBytes);
  }

  struct Sums {
    Row grad_x, weight[kOutputBlocks], squares[1];
    float channels[4];
  };

  FUSEDSC_DEVICE explicit PointwiseNResidentProduct(const PointwiseNResidentParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    first_tile_ = static_cast<int>(block_index()) * kGroups + group_;
    stride_ = p.splits * kGroups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    image_ = memory;
    memory += kImageBytes;
    quads_ = reinterpret_cast<Aligned<float, 4>*>(memory);
    stages_ = memory + group_ * p.stages * kStageBytes;
    out_ = memory + kGroups * p.stages * kStageBytes + group_ * (p.has_added ? 2 : 1) * kXBytes;
    const int tiles = tile_bytes(p.stages, p.has_added);
    memory += tiles > kSumBytes ? tiles : kSumBytes;
    ones_ = memory;
    barriers_ = reinterpret_cast<Barrier*>(memory + kOnesBytes) + group_ * (p.stages + 2);
    vectors_ = reinterpret_cast<float*>(memory + kOnesBytes + barrier_bytes(p.stages)) + group_ * End::kVectorFloats;
  }

  FUSEDSC_DEVICE void loop() {
    let_next_kernel_start();
    if (thread_ == 0) {
      for (int i = 0; i < p_.stages + 2; ++i) initialise(barriers_ + i);
    }
    if (thread_index() < kOnesBytes / 4)
      reinterpret_cast<std::uint32_t*>(ones_)[thread_index()] = to_bits(1.0f, 1.0f, T());
    publish();
    wait_for_previous_kernel();
    if (thread_ == 0) {
      for (int i = 0; i < p_.stages; ++i) start_tile(i);
      start_added(0);
    }
    using Run = Aligned<std::uint32_t, 4>;
    for (int i = thread_index(); i < kImage.bytes / 16; i += kThreads) {
      reinterpret_cast<Run*>(image_)[i] = reinterpret_cast<const Run*>(p_.image)[i];
    }
    publish();
    block_barrier();
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + turn.slot, turn.parity);
      multiply_tile(sums, stages_ + turn.slot * kStageBytes);
      if (thread_ == 0) {
        wait_for_stores();
        start_added(tile + 1);
      }
      wait_for_products<0>();
      fence_all(sums);
      group_barrier(group_);  // all are done with the tiles, and the tile of results is free
      if (thread_ == 0) start_tile(tile + p_.stages);
      unsigned char* out = out_ + (p_.has_added ? tile % 2 * kXBytes : 0);
      if (p_.has_added) wait(barriers_ + p_.stages + tile % 2, tile / 2 % 2);
      store_tile(sums.grad_x, out);
      publish();
      group_barrier(group_);
      if (thread_ == 0) {
        start_store(p_.grad_x, 0, first_pixel(tile), out);
        commit_stores();
      }
      turn.next(p_.stages);
    }
    finish(sums);
    if (thread_ == 0) wait_for_stores();
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums);
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (first_tile_ + tile * stride_) * 64; }

  FUSEDSC_DEVICE void start_tile(int tile) const {
    if (tile >= tiles_) return;
    unsigned char* to = stages_ + tile % p_.stages * kStageBytes;
    Barrier* barrier = barriers_ + tile % p_.stages;
    expect(barrier, kStageBytes);
    const int pixel = first_pixel(tile);
    start_load(to + kGradBytes, p_.x, 0, pixel, barrier);
#pragma unroll
    for (int i = 0; i < kOutputBlocks; ++i) {
      const bool is_last = i == kOutputBlocks - 1;
      start_load(to + i * kBlockBytes, is_last ? p_.last_grad_y : p_.grad_y, i * 64, pixel, barrier);
    }
  }

  /// To where the results will be.
  FUSEDSC_DEVICE void start_added(int tile) const {
    if (!p_.has_added || tile >= tiles_) return;
    Barrier* barrier = barriers_ + p_.stages + tile % 2;
    expect(barrier, kXBytes);
    start_load(out_ + tile % 2 * kXBytes, p_.added, 0, first_pixel(tile), barrier);
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
    fence(sums.grad_x);
    fence(sums.squares[0]);
    fence(sums.channels);
    fence(sums.weight);
  }

  FUSEDSC_DEVICE void multiply_tile(Sums& sums, const unsigned char* tile) const {
    constexpr int kLastBytes = kLastWide * 2;
    const std::uint64_t x = describe<kRowBytes>(tile + kGradBytes), weight = describe<kRowBytes>(image_),
                        square = describe<kRowBytes>(image_ + kImage.first_square), ones = describe_constant(ones_);
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        multiply<true>(sums.grad_x, x + step * 32 / 16,
                       square + (part * End::kSquareBytes + step * 16 * kRowBytes) / 16, part == 0 && step == 0, T());
      }
    }
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      const std::uint64_t rows = x + k * kRowBytes / 16;
      multiply<true, true>(sums.squares[0], rows, rows, false, T());
      multiply<false, true>(sums.channels, rows, ones, false, T());
    }
#pragma unroll
    for (int block = 0; block < kOutputBlocks; ++block) {
      const bool is_last = block == kOutputBlocks - 1;
      const unsigned char* from = tile + block * kBlockBytes;
      const std::uint64_t outputs = is_last ? describe<kLastBytes>(from) : describe<128>(from);
#pragma unroll
      for (int k = 0; k < 64; k += 16) {
        multiply<true, true>(sums.weight[block], outputs + k * (is_last ? kLastBytes : 128) / 16,
                             x + k * kRowBytes / 16, false, T());
        if (block * 64 + k < kOutputs) {
          multiply<true>(sums.grad_x, outputs + k * 2 / 16, weight + (block * 64 + k) * kRowBytes / 16, false, T());
        }
      }
    }
    commit_products();
    fence_all(sums);
  }

  /// To shared memory, where what is added may lie.
  FUSEDSC_DEVICE void store_tile(const Row& sums, unsigned char* out) const {
    const auto* vectors = reinterpret_cast<const float*>(image_ + kImage.vectors);
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
#pragma unroll
    for (int run = 0; run < kColumns / 8; ++run) {
      const int channel = run * 8 + lane % 4 * 2;
      const auto scale = pair_at(vectors + channel), constant = pair_at(vectors + kWide + channel);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* to = reinterpret_cast<std::uint32_t*>(out + place_of_run<kRowBytes>(row + half * 8, run) + lane % 4 * 4);
        float first = sums[run * 4 + half * 2] * scale.elements[0] + constant.elements[0];
        float second = sums[run * 4 + half * 2 + 1] * scale.elements[1] + constant.elements[1];
        if (p_.has_added) {
          float addends[2];
          to_floats(*to, addends[0], addends[1], T());
          first += addends[0];
          second += addends[1];
        }
        *to = to_bits(first, second, T());
      }
    }
  }

  /// Makes sums.weight the group's share of the gradient. x^T x goes to where tiles were.
  FUSEDSC_DEVICE void finish(Sums& sums) const {
    End end(p_, vectors_, stages_);
    end.leave_largest(sums.squares, sums.channels);
    group_barrier(group_);
    end.read_largest();
    end.leave_squares(sums.squares);
    group_barrier(group_);
#pragma unroll
    for (int block = 0; block < kOutputBlocks; ++block) end.finish(sums.weight[block], sums.grad_x, block * 64);
  }

  // --------------------------------------------------------------------------------------- by all threads of a block

  FUSEDSC_DEVICE void leave(const Sums& sums) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const float* from = sums.weight[quad / (kColumns / 8)] + quad % (kColumns / 8) * 4;
      quads_[(group_ * kQuads + quad) * 128 + thread_] = {{from[0], from[1], from[2], from[3]}};
    }
    block_barrier();
    for (int item = thread_index(); item < kQuads * 128; item += kThreads) {
      const NResidentQuad place(item / 128, item % 128, kColumns / 8);
      if (place.output >= p_.outputs || place.channel >= p_.channels) continue;
      Aligned<float, 4> sum = quads_[item];
#pragma unroll
      for (int group = 1; group < kGroups; ++group) {
        const Aligned<float, 4> other = quads_[group * kQuads * 128 + item];
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.elements[i] += other.elements[i];
      }
      p_.partials[static_cast<std::int64_t>(block_index()) * (kQuads * 128) + item] = sum;
    }
  }

  const PointwiseNResidentParameters& p_;
  int group_, thread_, first_tile_, stride_, tiles_;
  unsigned char *image_, *stages_, *out_, *ones_;
  Barrier* barriers_;
  float* vectors_;
  Aligned<float, 4>* quads_;
};

}  // namespace fusedsc::gpu::hopper
