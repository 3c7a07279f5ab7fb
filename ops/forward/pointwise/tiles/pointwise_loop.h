/// The loop of the pointwise kernels: what a block multiplies passes through its memory in stages, which are filled
/// ahead of their use. Where copies would keep their thread waiting (all on AMD's GPUs, elsewhere those of elements of
/// 16 bits that are no runs) there is one stage, and what comes next is on its way to registers meanwhile. On AMD's
/// GPUs sums leave by the memory that the stage had: less of it, so that more blocks fit.
#pragma once

#include "fusedsc/forward/pointwise/tiles/pointwise_operand.h"

namespace fusedsc::gpu {

/// Shared memory from `data` on, of which a block has at least kBytes_: what needs more than that does not compile.
template <class A, std::size_t kBytes_>
struct SharedMemory {
  static constexpr std::size_t kBytes = kBytes_;

  A* data;
};

/// Computes one tile after the other; copies run ahead of products, across tiles too. window(tile) says where a tile's
/// operands begin; at_step(rows, depth) sees each step's rows in shared memory; finish(tile, sums) gets the product, or
/// where in shared memory it was left (matrix.h). kElements: elements of the operands may be no runs. kLeaves:
/// sums are left in any case.
template <class T, class Tile, class Rows, class Cols, bool kElements = false, bool kLeaves = false>
class TileLoop {
 public:
  using A = Accumulator<T>;

  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(bool rows_other, bool cols_other) {
    const int fixed = Rows::fixed_bytes() + Cols::fixed_bytes();
    const int stage = Rows::stage_bytes(rows_other) + Cols::stage_bytes(cols_other);
    if (kSumsApart) return static_cast<std::size_t>(fixed + kSumsBytes + kStages * stage);
    return static_cast<std::size_t>(fixed + (stage > kSumsBytes ? stage : kSumsBytes));
  }

  FUSEDSC_DEVICE TileLoop(Rows& rows, Cols& cols)
      : rows_(rows), cols_(cols), stage_bytes_(rows.stage_bytes() + cols.stage_bytes()) {
    memory_ = static_cast<unsigned char*>(shared_memory());
  }

  /// The windows' beginnings and ends in rows and columns stay the same for all tiles.
  FUSEDSC_DEVICE void start_fixed(const OperandWindow& rows, const OperandWindow& cols) {
    rows_.start_fixed(memory_, rows.outer, rows.outer_end);
    cols_.start_fixed(memory_ + Rows::fixed_bytes(), cols.outer, cols.outer_end);
  }

  /// For what remains to be done behind the loop.
  FUSEDSC_DEVICE A* memory() const { return reinterpret_cast<A*>(memory_); }

  template <class Window, class AtStep, class Finish>
  FUSEDSC_DEVICE void run(int tiles, int steps, int depth, const Window& window, const AtStep& at_step,
                          const Finish& finish) {
    if constexpr (kStages > 1) run_ahead(tiles, steps, depth, window, at_step, finish);
    else run_in_turn(tiles, steps, depth, window, at_step, finish);
  }

 private:
  using Product = MatrixProduct<T, Tile>;
  static constexpr bool kLeavesSums = kLeaves || !Product::kKeepsSums, kSumsApart = kCopyStages > 1;
  /// Elements of 32 bits and more are copied like runs, but not those that TensorFloat-32 multiplies (not tried).
  static constexpr bool kCopiesAhead = !kElements || (sizeof(T) >= 4 && !Tile::kTf32);
  static constexpr int kStages = kCopiesAhead ? kCopyStages : 1;
  static constexpr int kSumsBytes = kLeavesSums ? Tile::kSums * static_cast<int>(sizeof(A)) : 0;
  static constexpr int kFixedBytes = Rows::fixed_bytes() + Cols::fixed_bytes();

  template <class Window, class AtStep, class Finish>
  FUSEDSC_DEVICE void run_ahead(int tiles, int steps, int depth, const Window& window, const AtStep& at_step,
                                const Finish& finish) {
    Product product;
    int next_tile = 0, next_step = 0, tile = 0, step = 0, slot = 0;
    for (int ahead = 1; tile < tiles; ++ahead) {
      if (ahead >= kCopyStages) {  // before that there is nothing to multiply yet
        wait_for_copies<kCopyStages - 2>();
        block_barrier();
      }
      if (next_tile < tiles && next_step < steps) {
        const OperandWindows windows = window(next_tile);
        unsigned char* to = stage(slot == 0 ? kCopyStages - 1 : slot - 1);
        // What is the same for all tiles, and has one step, is in each of the stages by then.
        const bool is_filled = steps == 1 && next_tile >= kCopyStages;
        if (!Rows::kSame || !is_filled) rows_.start(to, windows.rows, next_step == 0);
        if (!Cols::kSame || !is_filled) cols_.start(to + rows_.stage_bytes(), windows.cols, next_step == 0);
        if (++next_step == steps) {
          next_step = 0;
          ++next_tile;
        }
      }
      commit_copies();
      if (ahead < kCopyStages) {
        slot = slot == kCopyStages - 1 ? 0 : slot + 1;
        continue;
      }
      multiply(product, stage(slot), depth - step * Tile::kDepth, at_step);
      slot = slot == kCopyStages - 1 ? 0 : slot + 1;
      if (++step < steps) continue;
      finish_tile(product, tile, finish);
      step = 0;
      ++tile;
    }
  }

  template <class Window, class AtStep, class Finish>
  FUSEDSC_DEVICE void run_in_turn(int tiles, int steps, int depth, const Window& window, const AtStep& at_step,
                                  const Finish& finish) {
    Product product;
    // What is the same for all tiles, and has one step, stays where it is.
    const auto is_there = [&](bool is_same, int of_tile) { return kSumsApart && is_same && steps == 1 && of_tile > 0; };
    if constexpr (kFixedBytes > 0 && kSumsApart) {
      commit_copies();
      wait_for_copies<0>();
    }
    int next_tile = 0, next_step = 0, tile = 0, step = 0;
    for (bool has_fetched = false; tile < tiles;) {
      if (has_fetched) {
        block_barrier();  // nobody needs the memory any more
        if (step < steps) {
          if (!is_there(Rows::kSame, tile)) rows_.leave(stage(0));
          if (!is_there(Cols::kSame, tile)) cols_.leave(stage(0) + rows_.stage_bytes());
        }
        block_barrier();
      }
      if (next_tile < tiles && next_step < steps) {
        const OperandWindows windows = window(next_tile);
        if (!is_there(Rows::kSame, next_tile)) rows_.fetch(windows.rows, next_step == 0);
        if (!is_there(Cols::kSame, next_tile)) cols_.fetch(windows.cols, next_step == 0);
      }
      if (++next_step >= steps) {
        next_step = 0;
        ++next_tile;
      }
      if (!has_fetched) {
        has_fetched = true;
        continue;
      }
      multiply(product, stage(0), depth - step * Tile::kDepth, at_step);
      if (++step < steps) continue;
      block_barrier();
      finish_tile(product, tile, finish);
      step = 0;
      ++tile;
    }
  }

  /// A stage, of which `left` values of k and those behind them are still to be multiplied.
  template <class AtStep>
  FUSEDSC_DEVICE void multiply(Product& product, unsigned char* from, int left, const AtStep& at_step) {
    if (left <= 0) return;
    const auto rows = rows_.operand(from, left);
    at_step(rows, left);
    product.multiply(rows, cols_.operand(from + rows_.stage_bytes(), left), left);
  }

  template <class Finish>
  FUSEDSC_DEVICE void finish_tile(Product& product, int tile, const Finish& finish) {
    if constexpr (!kLeavesSums) {
      finish(tile, product);
    } else {
      product.template leave<typename Rows::Tile, typename Cols::Tile>(sums());
      block_barrier();
      finish(tile, static_cast<const A*>(sums()));
    }
    product.clear();
  }

  FUSEDSC_DEVICE A* sums() const { return reinterpret_cast<A*>(memory_ + kFixedBytes); }
  FUSEDSC_DEVICE unsigned char* stage(int slot) const {
    return memory_ + kFixedBytes + (kSumsApart ? kSumsBytes : 0) + slot * stage_bytes_;
  }

  Rows& rows_;
  Cols& cols_;
  int stage_bytes_;
  unsigned char* memory_;
};

}  // namespace fusedsc::gpu
