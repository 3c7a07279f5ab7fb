/// The pointwise half of the fused block's kernel in eval mode on Hopper GPUs: warpgroups that multiply tiles
/// of d by the weight, chunk after chunk of channels, and finish and store the outputs.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_memory.h"

namespace fusedsc::gpu::hopper {

template <class Shape>
class DscBlockProducts {
 public:
  FUSEDSC_DEVICE DscBlockProducts(const DscBlockParameters& p, const DscSharedMemory<Shape>& memory)
      : p_(p), memory_(memory) {
    const int group = uniform(thread_index() / 128);
    first_row_ = group % Shape::kRowShares * kRows;
    first_output_ = group / Shape::kRowShares * kOutputs;
    staged_ = memory.staged + uniform(thread_index() / 32) * Shape::kStagedBytes;
  }

  /// release(chunk number): by one thread of a block, when a stage is free.
  template <class Release>
  FUSEDSC_DEVICE void run(const Release& release) const {
    int number = 0;
#pragma unroll 1
    for (int tile = static_cast<int>(block_index()); tile < p_.tiles; tile += static_cast<int>(block_count())) {
      Sums sums;
#pragma unroll 1
      for (int i = 0; i < p_.chunks; ++i) {
        const DscBlockChunk chunk(p_, number);
        wait(memory_.arrived + chunk.slot, chunk.parity);
        wait(memory_.made + chunk.middle, chunk.middle_parity);
        multiply_chunk(sums, chunk, i);
        Barrier* used = memory_.used + DscBlockChunk::use(number);
        arrive_as_warp(used);
        if (thread_index() == 0) {
          wait(used, DscBlockChunk::use_parity(number));
          release(number);
        }
        warp_barrier();
        ++number;
      }
      const DscBlockPlace place(p_, tile);
#pragma unroll
      for (int row = 0; row < kRows; ++row) store(place, first_row_ + row, sums[row]);
    }
  }

 private:
  using T = typename Shape::T;
  static constexpr int kRows = Shape::kGroupRows, kOutputs = Shape::kGroupOutputs, kRowBytes = Shape::kRowBytes;
  using Sums = float[kRows][kOutputs / 2];

  FUSEDSC_DEVICE void multiply_chunk(Sums& sums, const DscBlockChunk& chunk, int i) const {
    const unsigned char* weight =
        memory_.stages + chunk.slot * memory_.stage_bytes + memory_.weight_place + first_output_ * kRowBytes;
    const unsigned char* middle = memory_.middles + chunk.middle * Shape::kMiddleBytes + first_row_ * 64 * kRowBytes;
    const std::uint64_t columns = describe<kRowBytes>(weight), rows = describe<kRowBytes>(middle);
    const int steps = least(p_.runs() - i * Shape::kRuns, Shape::kRuns) / 2;
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kRuns / 2; ++step) {
      if (step >= steps) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        multiply<false>(sums[row], rows + row * (64 * kRowBytes / 16) + step * 2, columns + step * 2,
                        i == 0 && step == 0, T());
      }
    }
    commit_products();
    fence_all(sums);
    wait_for_products<0>();
    fence_all(sums);
  }

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) fence(sums[row]);
  }

  /// Row `row` of all strips, by way of shared memory, so that neighbouring lanes store neighbouring runs of 16 bytes.
  FUSEDSC_DEVICE void store(const DscBlockPlace& tile, int row, float (&sums)[kOutputs / 2]) const {
    const auto thread = static_cast<unsigned>(thread_index());
    const int lane = static_cast<int>(thread % 32), own_run = static_cast<int>(thread % 4) * 8;
    const DscBlockPatch* patches = memory_.patches + thread % 128 / 32 * 4 + thread % 32 / 16;
    T* positions[2] = {};  // which are 8 apart in a product; none: there is no such position
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const DscBlockPatch patch = patches[half * 2];
      const int column = patch.column + static_cast<int>(thread / 4 % 4);
      const int image_row = tile.row + patch.row + row, image_column = tile.column + column;
      if (patch.row + row >= patch.end || column >= p_.tile_columns || image_row >= p_.output_height ||
          image_column >= p_.output_width) {
        continue;
      }
      positions[half] = elements_of<T>(p_.y) + p_.y.offset(tile.image, first_output_, image_row, image_column);
    }
#pragma unroll
    for (int piece = 0; piece < kOutputs; piece += Shape::kStagedOutputs) {
      warp_barrier();  // what was here has been stored
#pragma unroll
      for (int i = piece; i < least(piece + Shape::kStagedOutputs, kOutputs); i += 16) {
        constexpr int kLast = kOutputs / 2 - 4;
        float values[8];
#pragma unroll
        for (int v = 0; v < 8; ++v) values[v] = sums[least(i / 2 + v / 4 * 4, kLast) + v % 4];  // the last 8 twice
        finish(positions, i, values);
        std::uint32_t words[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) words[v] = to_bits(values[2 * v], values[2 * v + 1], T());
        store_matrices(staged_ + lane % 16 * Shape::kStagedPitch + (i - piece) * 2 + lane / 16 * 16, words);
      }
      warp_barrier();
      if (own_run >= kOutputs - piece || own_run >= p_.outputs - first_output_ - piece) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (positions[half] == nullptr) continue;
        *reinterpret_cast<Aligned<std::uint32_t, 4>*>(positions[half] + piece + own_run) =
            *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(staged_ + (lane / 4 + half * 8) * Shape::kStagedPitch +
                                                                own_run * 2);
      }
    }
  }

  /// The epilogue: of a pair of the group's outputs from `first` on, of both positions, then of the pair 8 outputs on.
  FUSEDSC_DEVICE void finish(T* const (&positions)[2], int first, float (&values)[8]) const {
    const int own_pair = static_cast<int>(static_cast<unsigned>(thread_index()) % 4) * 2;
    const float* maps = memory_.output_maps + 2 * (first_output_ + own_pair);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const auto map = *reinterpret_cast<const Aligned<float, 4>*>(maps + 2 * first + 4 * i);
#pragma unroll
      for (int v = 0; v < 4; ++v) values[i + v] = values[i + v] * map.elements[v % 2 * 2] + map.elements[v % 2 * 2 + 1];
    }
    activate(p_.epilogue_activation, values);
    if (!p_.has_residual) return;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int output = first + i / 4 * 8;
      const T* at = positions[i / 2 % 2];
      if (at == nullptr || own_pair >= p_.outputs - first_output_ - output) continue;
      float pair[2];
      load<2>(at + p_.residual_distance + own_pair + output).widen(pair);
      values[i] += pair[0];
      values[i + 1] += pair[1];
    }
  }

  const DscBlockParameters& p_;
  const DscSharedMemory<Shape>& memory_;
  int first_row_, first_output_;  ///< of the group
  unsigned char* staged_;
};

}  // namespace fusedsc::gpu::hopper
