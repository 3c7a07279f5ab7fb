/// What goes with gpu_lists: the second pass, where blocks share channels out, and packing a weight.
#pragma once

#include "fusedsc/forward/sparse/lists/sparse_lists_kernel.h"

namespace fusedsc::gpu {

/// The second pass: a thread has an element of y, or a run of a compressed one.
template <class T>
struct SparseFinish {
  using A = Accumulator<T>;

  FUSEDSC_DEVICE static void run(const SparseFinishParameters& p) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const bool compresses = p.y_counts != nullptr;
    const int items = compresses ? p.y_runs : p.outputs;
    const std::int64_t item = std::int64_t{block_index()} * kSparseElementThreads + thread_index();
    const bool is_given = item < std::int64_t{p.images} * p.y_rows * p.y_columns * items;
    const auto first = static_cast<int>(item % items);
    const std::int64_t place = item / items;
    const auto w = static_cast<int>(place % p.y_columns);
    const auto h = static_cast<int>(place / p.y_columns % p.y_rows);
    const std::int64_t image = place / p.y_columns / p.y_rows;
    if (!compresses) {
      if (is_given)
        from_accumulator(result(p, image, first, h, w), elements_of<T>(p.y)[p.y.offset(image, first, h, w)]);
      return;
    }
    A values[kSparseRun] = {};
    CompressedList to;
    if (is_given) {
      const int output = first * kSparseRun;
#pragma unroll
      for (int i = 0; i < kSparseRun; ++i) {
        if (output + i < p.outputs) values[i] = result(p, image, output + i, h, w);
      }
      to = compressed_list<T>(p, image, output, h, w);
    }
    write_compressed_run<T>(values, is_given, to, static_cast<int*>(shared_memory()));
  }

  FUSEDSC_DEVICE static A result(const SparseFinishParameters& p, std::int64_t image, int output, int h, int w) {
    const std::int64_t slots = std::int64_t{p.slot_rows} * p.slot_columns, split = p.images * slots * p.outputs;
    const A* partials = static_cast<const A*>(p.partials) + image * slots * p.outputs + output;
    const A bias = p.bias != nullptr ? to_accumulator(static_cast<const T*>(p.bias)[output]) : A(0);
    A most = 0;
    for (int i = 0; i < p.pool_rows; ++i) {
      for (int j = 0; j < p.pool_columns; ++j) {
        const std::int64_t slot =
            std::int64_t{h * p.pool_row_stride + i} * p.slot_columns + w * p.pool_column_stride + j;
        const A* from = partials + slot * p.outputs;
        A sum = 0;
#pragma unroll 4
        for (int s = 0; s < p.splits; ++s) sum += from[s * split];
        A value[1] = {sum + bias};
        activate(p.activation, value);
        most = i + j == 0 ? value[0] : greater_or_nan(most, value[0]);
      }
    }
    return most;
  }
};

/// A thread has an element of the packed weight.
template <class T>
FUSEDSC_DEVICE void pack_sparse(const PackSparseParameters& p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const std::int64_t item = std::int64_t{block_index()} * kSparseElementThreads + thread_index();
  if (item >= p.all) return;
  const auto lane = static_cast<int>(item % kSparseRow);
  const std::int64_t row = item / kSparseRow % p.rows, block = item / kSparseRow / p.rows;
  const int output = static_cast<int>(block % p.row_blocks) * kSparseRow + lane;
  const std::int64_t group = block / p.row_blocks;
  const std::int64_t j = row % p.kernel_columns, i = row / p.kernel_columns % p.kernel_rows,
                     channel = row / p.kernel_columns / p.kernel_rows;
  Accumulator<T> value = 0;
  if (output < p.outputs) {
    value = to_accumulator(
        static_cast<const T*>(p.weight)[(group * p.outputs + output) * p.output_stride + channel * p.channel_stride +
                                        i * p.row_stride + j * p.column_stride]);
  }
  static_cast<Accumulator<T>*>(p.packed)[item] = value;
}

}  // namespace fusedsc::gpu
