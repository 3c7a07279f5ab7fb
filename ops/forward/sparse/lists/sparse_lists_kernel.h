/// Convolution that skips zeros, on GPUs: a block compresses its part of the map into lists in shared memory (seed
/// 002's Algorithms 1 and 3), and multiplies each with rows of the packed weight (Algorithms 2 and 4).
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/common/gpu/vendor/prefetch.h"
#include "fusedsc/forward/sparse/lists/compressed_run.h"
#include "fusedsc/forward/sparse/lists/sparse_lists_parameters.h"

namespace fusedsc::gpu {

/// A value other than zero, and where its row of the weight begins, at the window's first tap: F_data, and PECR's
/// Index.
template <class A>
struct alignas(sizeof(A) == 8 ? 16 : 8) SparseEntry {
  A value;
  int offset;
};

/// sum += value * weight. Tests have one that counts.
struct SparseProduct {
  template <class A>
  FUSEDSC_DEVICE static void add(A& sum, A value, A weight) {
    sum += value * weight;
  }
};

/// The greater one; a NaN stays one, whichever it is.
template <class A>
FUSEDSC_DEVICE A greater_or_nan(A most, A value) {
  return value > most || value != value ? value : most;
}

/// What a block's shared memory holds.
template <class A, int kOutputs>
struct SparseMemory {
  static constexpr int kSlotStride = kOutputs + 16 / static_cast<int>(sizeof(A));  ///< whole vectors, other banks

  SparseEntry<A>* entries;   ///< of each list list_size()
  A* sums;                   ///< of each slice and slot kSlotStride
  int* counts;               ///< Ptr: how many entries of its list are given; -1 for none
  int* thread_counts;        ///< of each thread, while y is compressed
  std::uint8_t* run_counts;  ///< of each list and run

  FUSEDSC_HOST_DEVICE static std::int64_t bytes(const SparseListsParameters& p) {
    const std::int64_t lists = p.lists();
    return lists * p.list_size() * static_cast<std::int64_t>(sizeof(SparseEntry<A>)) +
           std::int64_t{p.slices} * p.slots() * kSlotStride * static_cast<std::int64_t>(sizeof(A)) +
           (lists + (p.compresses_y ? p.threads : 0)) * static_cast<std::int64_t>(sizeof(int)) + lists * p.run_stride();
  }
  FUSEDSC_DEVICE SparseMemory(const SparseListsParameters& p, void* memory)
      : entries(static_cast<SparseEntry<A>*>(memory)),
        sums(reinterpret_cast<A*>(entries + p.lists() * p.list_size())),
        counts(reinterpret_cast<int*>(sums + p.slices * p.slots() * kSlotStride)),
        thread_counts(counts + p.lists()),
        run_counts(reinterpret_cast<std::uint8_t*>(thread_counts + (p.compresses_y ? p.threads : 0))) {}

  /// The counts of the first `count` of a list's runs, added up: four of them by a multiplication.
  FUSEDSC_DEVICE static int counted(const std::uint8_t* of_list, std::uint32_t count) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(of_list);
    const auto sum = [](std::uint32_t word) { return static_cast<int>(word * 0x01010101U >> 24); };
    const std::uint32_t whole = count / 4;
    int all = sum(words[whole] & ((1U << (8 * (count % 4))) - 1));
#pragma unroll 1
    for (std::uint32_t i = 0; i < whole; ++i) all += sum(words[i]);
    return all;
  }
};

/// `kLanes` threads have kVector neighbouring outputs each of a slot: no thread needs another's registers, so waves of
/// any size run this. kAtOnce rows of the weight are on their way to each. kCompressed: x or y, or both, are compressed
/// maps; others need fewer registers, and of float64 more rows at once would spill.
template <class T, int kLanes, int kVector, bool kCompressed = false, class Product = SparseProduct,
          int kAtOnce = sizeof(Accumulator<T>) == 8 && kCompressed ? 2 : 4>
struct SparseLists {
  using A = Accumulator<T>;
  using Memory = SparseMemory<A, kLanes * kVector>;
  static constexpr int kOutputs = kLanes * kVector;

  /// What a block has.
  struct Part {
    int output_tile, row_tile, column_tile, split, group, image;

    FUSEDSC_DEVICE Part(const SparseListsParameters& p, unsigned block) {
      std::uint32_t rest = block;
      const auto next = [&rest](const Divisor& by) {
        const std::uint32_t quotient = by.divide(rest);
        const auto remainder = static_cast<int>(rest);
        rest = quotient;
        return remainder;
      };
      output_tile = next(p.by_output_tiles);
      column_tile = next(p.by_column_tiles);
      row_tile = next(p.by_row_tiles);
      split = next(p.by_splits);
      group = next(p.by_groups);
      image = static_cast<int>(rest);
    }
  };

  FUSEDSC_DEVICE static void run(const SparseListsParameters& p) {
    const Memory memory(p, shared_memory());
    const Part part(p, block_index());
    const int begin = part.split * p.split_channels;
    const int end = begin + p.split_channels < p.channels ? begin + p.split_channels : p.channels;
    if (!p.weight_is_new) prefetch_weight(p, part, begin, end);
    wait_for_previous_kernel();
    let_next_kernel_start();
    for (int first = begin; first < end; first += p.slab()) {
      compress(p, part, first, end, memory);
      block_barrier();
      multiply(p, part, first == begin, memory);
      block_barrier();
    }
    if (p.partials != nullptr) return leave(p, part, memory);
    if constexpr (kCompressed) {
      if (p.y_counts != nullptr) return finish_compressed(p, part, memory);
    }
    finish(p, part, memory);
  }

  /// The block's share of the rows that it and other tiles read: they come while the kernel before ends, and while the
  /// map is compressed.
  FUSEDSC_DEVICE static void prefetch_weight(const SparseListsParameters& p, const Part& part, int begin, int end) {
    constexpr int kLine = 128 / static_cast<int>(sizeof(A)), kLines = kOutputs / kLine;
    const int tile = (part.image * p.row_tiles + part.row_tile) * p.column_tiles + part.column_tile;
    const int tiles = p.images * p.row_tiles * p.column_tiles;
    const int lines = (end - begin) * p.taps() * kLines, row_blocks = (p.outputs + kSparseRow - 1) / kSparseRow;
    for (std::int64_t at = std::int64_t{tile} * p.threads + thread_index(); at < lines;
         at += std::int64_t{tiles} * p.threads) {
      const auto i = static_cast<int>(at);
      const int output = part.output_tile * kOutputs + i % kLines * kLine;
      if (output >= p.outputs) continue;
      const std::int64_t block = std::int64_t{part.group} * row_blocks + output / kSparseRow;
      const std::int64_t row = (block * p.channels + begin) * p.taps() + i / kLines;
      prefetch(static_cast<const A*>(p.weight) + row * kSparseRow + output % kSparseRow);
    }
  }

  /// Channels [first, first + slab) of those below `end`, of all positions of the tile. A thread reads a run of
  /// channels of a position, or what a compressed map has of it; runs of a list lie side by side.
  FUSEDSC_DEVICE static void compress(const SparseListsParameters& p, const Part& part, int first, int end,
                                      const Memory& memory) {
    const int h0 = part.row_tile * p.rows.tile_stride * p.rows.x_stride - p.rows.padding;
    const int w0 = part.column_tile * p.columns.tile_stride * p.columns.x_stride - p.columns.padding;
    const int group = part.group * p.channels;
    const T* x = elements_of<T>(p.x);
    int own_list = 0, run = 0;
    if (p.x_channels_inner) {
      auto rest = static_cast<std::uint32_t>(thread_index());
      own_list = static_cast<int>(p.by_runs.divide(rest));
      run = static_cast<int>(rest);
    } else {
      auto rest = static_cast<std::uint32_t>(thread_index());
      run = static_cast<int>(p.by_lists_at_once.divide(rest));
      own_list = static_cast<int>(rest);
    }
    const bool takes_part = own_list < p.lists_at_once && run < p.runs;
    const int row_step = p.taps() * kSparseRow;
    for (int round = 0; round < p.lists(); round += p.lists_at_once) {
      const int list = round + own_list;
      const bool is_mine = takes_part && list < p.lists();
      A values[kSparseRun] = {};
      int channel = 0, count = 0;
      std::uint32_t places = 0x76543210;  // in the run, of 4 bits each
      if (is_mine) {
        auto position = static_cast<std::uint32_t>(list);
        const auto slice = static_cast<int>(p.by_positions.divide(position));
        const auto row = static_cast<int>(p.by_position_columns.divide(position));
        const int h = h0 + row * p.rows.sample, w = w0 + static_cast<int>(position) * p.columns.sample;
        channel = first + (slice * p.runs + run) * kSparseRun;
        if (h >= 0 && h < p.rows.x_size && w >= 0 && w < p.columns.x_size && channel < end) {
          const std::int64_t position = part.image * p.x.image + h * p.x.row + w * p.x.column;
          if (kCompressed && p.x_counts != nullptr) {
            const int of_all = group + channel, in_list = of_all % kSparseList;
            places = read_compressed_run<T>(p.x, p.x_channels, p.x_counts, position + of_all - in_list,
                                            in_list / kSparseRun, end - channel - 1, values);
          } else {
            const T* from = x + position + (group + channel) * p.x.channel;
#pragma unroll
            for (int i = 0; i < kSparseRun; ++i) {
              if (channel + i < end) values[i] = to_accumulator(from[i * p.x.channel]);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kSparseRun; ++i) count += values[i] != A(0) ? 1 : 0;
        memory.run_counts[list * p.run_stride() + run] = static_cast<std::uint8_t>(count);
      }
      block_barrier();
      if (!is_mine) continue;
      const int place = Memory::counted(memory.run_counts + list * p.run_stride(), static_cast<std::uint32_t>(run));
      if (run == p.runs - 1) memory.counts[list] = place + count > 0 ? place + count : -1;
      SparseEntry<A>* to = memory.entries + list * p.list_size() + place;
#pragma unroll
      for (int i = 0; i < kSparseRun; ++i) {
        if (values[i] != A(0)) *to++ = {values[i], (channel + static_cast<int>(places >> (4 * i) & 7)) * row_step};
      }
    }
  }

  /// Adds the products of the lists to the slots' sums, which begin at zero where `is_first`.
  FUSEDSC_DEVICE static void multiply(const SparseListsParameters& p, const Part& part, bool is_first,
                                      const Memory& memory) {
    const int lane = thread_index() % kLanes, groups = p.threads / kLanes, items = p.slices * p.slots();
    const int output = part.output_tile * kOutputs + lane * kVector;
    const int row_blocks = (p.outputs + kSparseRow - 1) / kSparseRow;
    const bool has_outputs = output < row_blocks * kSparseRow;
    const A* weight = static_cast<const A*>(p.weight);
    if (has_outputs) {
      const std::int64_t block = std::int64_t{part.group} * row_blocks + output / kSparseRow;
      weight += block * p.channels * p.taps() * kSparseRow + output % kSparseRow;
    }
    for (int item = thread_index() / kLanes; item < items; item += groups) {
      auto slot = static_cast<std::uint32_t>(item);
      const auto slice = static_cast<int>(p.by_slots.divide(slot));
      const auto row = static_cast<int>(p.by_slot_columns.divide(slot));
      const auto column = static_cast<int>(slot);
      if (part.row_tile * p.rows.tile_stride + row >= p.rows.slots_size) continue;
      if (part.column_tile * p.columns.tile_stride + column >= p.columns.slots_size) continue;
      const int position = row * p.rows.slot_step * p.columns.positions + column * p.columns.slot_step;
      A sums[kVector] = {};
      A* to = memory.sums + item * Memory::kSlotStride + lane * kVector;
      if (!is_first) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[v] = to[v];
      }
      if (has_outputs) {
        int list = slice * p.positions() + position;
        const A* row_of_tap = weight;
        for (int i = 0; i < p.rows.kernel; ++i) {
          for (int j = 0; j < p.columns.kernel; ++j) {
            const int at = list + j * p.columns.tap_step;
            add_products(memory.entries + at * p.list_size(), memory.counts[at], row_of_tap, sums);
            row_of_tap += kSparseRow;
          }
          list += p.rows.tap_step * p.columns.positions;
        }
      }
#pragma unroll
      for (int v = 0; v < kVector; ++v) to[v] = sums[v];
    }
  }

  FUSEDSC_DEVICE static void add_products(const SparseEntry<A>* entries, int count, const A* weight,
                                          A (&sums)[kVector]) {
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      Vector<A, kVector> rows[kAtOnce];  // not cleared: that would be more instructions than there are products
      A values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= count) continue;
        const SparseEntry<A> entry = entries[first + i];
        values[i] = entry.value;
        rows[i] = load<kVector>(weight + entry.offset);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= count) continue;
        A row[kVector];
        rows[i].widen(row);
#pragma unroll
        for (int v = 0; v < kVector; ++v) Product::add(sums[v], values[i], row[v]);
      }
    }
  }

  /// A slot's sum over all slices.
  FUSEDSC_DEVICE static A sum_of(const SparseListsParameters& p, const Memory& memory, int slot, int output) {
    A sum = 0;
    for (int slice = 0; slice < p.slices; ++slice) {
      sum += memory.sums[(slice * p.slots() + slot) * Memory::kSlotStride + output];
    }
    return sum;
  }

  /// y of an output of the tile: bias, activation, and the greatest of its window.
  FUSEDSC_DEVICE static A result(const SparseListsParameters& p, const Part& part, const Memory& memory, int tile_row,
                                 int tile_column, int output) {
    const int of_all = part.group * p.outputs + part.output_tile * kOutputs + output;
    const A bias = p.bias != nullptr ? to_accumulator(static_cast<const T*>(p.bias)[of_all]) : A(0);
    A most = 0;
    for (int i = 0; i < p.rows.pool; ++i) {
      for (int j = 0; j < p.columns.pool; ++j) {
        const int slot =
            (tile_row * p.rows.pool_stride + i) * p.columns.slots + tile_column * p.columns.pool_stride + j;
        A value[1] = {sum_of(p, memory, slot, output) + bias};
        activate(p.activation, value);
        most = i + j == 0 ? value[0] : greater_or_nan(most, value[0]);
      }
    }
    return most;
  }

  FUSEDSC_DEVICE static void finish(const SparseListsParameters& p, const Part& part, const Memory& memory) {
    const int tile = p.rows.tile * p.columns.tile, outputs = p.outputs - part.output_tile * kOutputs;
    for (int item = thread_index(); item < tile * kOutputs; item += p.threads) {
      auto at = static_cast<std::uint32_t>(item);
      int output = 0;
      if (p.y_channels_inner) {
        output = item % kOutputs;
        at = static_cast<std::uint32_t>(item / kOutputs);
      } else {
        output = static_cast<int>(p.by_finished.divide(at));
      }
      const auto tile_row = static_cast<int>(p.by_tile_columns.divide(at));
      const auto tile_column = static_cast<int>(at);
      const int h = part.row_tile * p.rows.tile + tile_row, w = part.column_tile * p.columns.tile + tile_column;
      if (output >= outputs || h >= p.rows.y_size || w >= p.columns.y_size) continue;
      const int of_all = part.group * p.outputs + part.output_tile * kOutputs + output;
      from_accumulator(result(p, part, memory, tile_row, tile_column, output),
                       elements_of<T>(p.y)[p.y.offset(part.image, of_all, h, w)]);
    }
  }

  /// The same as a compressed map: a thread has a run of outputs of a position.
  FUSEDSC_DEVICE static void finish_compressed(const SparseListsParameters& p, const Part& part, const Memory& memory) {
    constexpr int kRuns = kOutputs / kSparseRun;
    const int items = p.rows.tile * p.columns.tile * kRuns, outputs = p.outputs - part.output_tile * kOutputs;
    const int list_outputs = (outputs + kSparseList - 1) / kSparseList * kSparseList;
    for (int first = 0; first < items; first += p.threads) {
      const int item = first + thread_index(), output = item % kRuns * kSparseRun;
      auto at = static_cast<std::uint32_t>(item / kRuns);
      const auto tile_row = static_cast<int>(p.by_tile_columns.divide(at));
      const auto tile_column = static_cast<int>(at);
      const int h = part.row_tile * p.rows.tile + tile_row, w = part.column_tile * p.columns.tile + tile_column;
      const bool is_given = item < items && output < list_outputs && h < p.rows.y_size && w < p.columns.y_size;
      A values[kSparseRun] = {};
      CompressedList to;
      if (is_given) {
#pragma unroll
        for (int i = 0; i < kSparseRun; ++i) {
          if (output + i < outputs) values[i] = result(p, part, memory, tile_row, tile_column, output + i);
        }
        to = compressed_list<T>(p, part.image, part.group * p.outputs + part.output_tile * kOutputs + output, h, w);
      }
      write_compressed_run<T>(values, is_given, to, memory.thread_counts);
    }
  }

  /// The slots' sums, for SparseFinish.
  FUSEDSC_DEVICE static void leave(const SparseListsParameters& p, const Part& part, const Memory& memory) {
    const int outputs = p.outputs - part.output_tile * kOutputs, all = p.groups * p.outputs;
    A* partials = static_cast<A*>(p.partials) +
                  (std::int64_t{part.split} * p.images + part.image) * p.rows.slots_size * p.columns.slots_size * all;
    for (int item = thread_index(); item < p.slots() * kOutputs; item += p.threads) {
      const int output = item % kOutputs, slot = item / kOutputs;
      auto column = static_cast<std::uint32_t>(slot);
      const auto row = static_cast<int>(p.by_slot_columns.divide(column));
      const int h = part.row_tile * p.rows.slots + row;
      const int w = part.column_tile * p.columns.slots + static_cast<int>(column);
      if (output >= outputs || h >= p.rows.slots_size || w >= p.columns.slots_size) continue;
      partials[(std::int64_t{h} * p.columns.slots_size + w) * all + part.group * p.outputs +
               part.output_tile * kOutputs + output] = sum_of(p, memory, slot, output);
    }
  }
};

}  // namespace fusedsc::gpu
