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
    const std::int64_t item = std::int64_t{block_index()} * kSparseElementThreads + thread_index();
    const bool is_given = item < p.items;
    const Place place(p, item);
    if (!compresses) {
      if (!is_given) return;
      A value[1];
      compute(p, place, place.item, value);
      from_accumulator(value[0], elements_of<T>(p.y)[p.y.offset(place.image, place.item, place.h, place.w)]);
      return;
    }
    A values[kSparseRun] = {};
    CompressedList to;
    if (is_given) {
      const int output = place.item * kSparseRun;
      compute(p, place, output, values);
      to = compressed_list<T>(p, place.image, output, place.h, place.w);
    }
    write_compressed_run<T>(values, is_given, to, static_cast<int*>(shared_memory()));
  }

 private:
  struct Place {
    int item, w, h;  ///< item: an output, or a run of them
    std::int64_t image;

    FUSEDSC_DEVICE Place(const SparseFinishParameters& p, std::int64_t number) {
      if (p.items <= kMostDivided) {  // without a division, which takes longer than all else
        const auto all = static_cast<std::uint32_t>(number);
        std::uint32_t columns = all, rows = p.by_items.divide(columns);
        item = static_cast<int>(columns);
        columns = rows, rows = p.by_columns.divide(columns);
        w = static_cast<int>(columns);
        columns = rows;
        image = p.by_rows.divide(columns);
        h = static_cast<int>(columns);
      } else {
        const int items = p.y_counts != nullptr ? p.y_runs : p.outputs;
        item = static_cast<int>(number % items);
        w = static_cast<int>(number / items % p.y_columns);
        h = static_cast<int>(number / items / p.y_columns % p.y_rows);
        image = number / items / p.y_columns / p.y_rows;
      }
    }
  };

  /// The outputs from `output` on that there are: their activation is one branch for the lot.
  template <int kCount>
  FUSEDSC_DEVICE static void compute(const SparseFinishParameters& p, const Place& place, int output,
                                     A (&most)[kCount]) {
    const std::int64_t slots = std::int64_t{p.slot_rows} * p.slot_columns, split = p.images * slots * p.outputs;
    const A* partials = static_cast<const A*>(p.partials) + place.image * slots * p.outputs + output;
    A bias[kCount] = {};
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      if (p.bias != nullptr && output + c < p.outputs)
        bias[c] = to_accumulator(static_cast<const T*>(p.bias)[output + c]);
    }
#pragma unroll 1
    for (int window = 0; window < p.pool_rows * p.pool_columns; ++window) {
      const int i = window / p.pool_columns, j = window - i * p.pool_columns;
      const std::int64_t slot =
          std::int64_t{place.h * p.pool_row_stride + i} * p.slot_columns + place.w * p.pool_column_stride + j;
      const A* from = partials + slot * p.outputs;
      A sum[kCount] = {};
#pragma unroll 4
      for (int s = 0; s < p.splits; ++s) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) sum[c] += output + c < p.outputs ? from[s * split + c] : A(0);
      }
#pragma unroll
      for (int c = 0; c < kCount; ++c) sum[c] += bias[c];
      activate(p.activation, sum);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        if (output + c < p.outputs) most[c] = window == 0 ? sum[c] : greater_or_nan(most[c], sum[c]);
      }
    }
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
