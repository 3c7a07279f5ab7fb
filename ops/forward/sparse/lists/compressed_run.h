/// Compressed maps (forward/sparse.h) on GPUs: a thread reads, or writes, what is given of kMapRun channels.
#pragma once

#include <cstdint>

#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/forward/sparse/lists/sparse_lists_parameters.h"

namespace fusedsc::gpu {

/// values = what is given of a run of a list, which begins `at` elements from the map's beginning: side by side, and
/// zeros behind. Returns the channel of each within the run, in 4 bits. Whatever the bytes of channels and counts are,
/// memory of that list is read, and the channels are at most `last`.
template <class T, class A>
FUSEDSC_DEVICE std::uint32_t read_compressed_run(const ConstDeviceTensor& map, const std::uint8_t* channels,
                                                 const std::uint32_t* counts, std::int64_t at, int run, int last,
                                                 A (&values)[kSparseRun]) {
  const std::uint32_t sums = counts[at / kSparseList] * 0x01010101u;  // up to each run, a byte each
  const int before = static_cast<int>((sums << 8) >> (8 * run) & 0xff);
  const int first = before < run * kSparseRun ? before : run * kSparseRun;
  const int count = static_cast<int>(sums >> (8 * run) & 0xff) - first;
  const T* from = elements_of<T>(map) + at + first;
  std::uint32_t places = 0;
#pragma unroll
  for (int i = 0; i < kSparseRun; ++i) {
    if (i >= count) continue;
    values[i] = to_accumulator(from[i]);
    const int place = channels[at + first + i] - run * kSparseRun;
    places |= static_cast<std::uint32_t>(place < 0 ? 0 : place > last ? last : place) << (4 * i);
  }
  return places;
}

/// Where in a compressed map a list begins, and a run of it is counted.
struct CompressedList {
  void* values = nullptr;
  std::uint8_t *channels = nullptr, *count = nullptr;
};

/// Of the output `run`, which is a run's first; `p`: of the pass that writes y.
template <class T, class Parameters>
FUSEDSC_DEVICE CompressedList compressed_list(const Parameters& p, std::int64_t image, int run, int h, int w) {
  const std::int64_t at = p.y.offset(image, run, h, w), list = at - run % kSparseList;
  return {elements_of<T>(p.y) + list, p.y_channels + list, p.y_counts + at / kSparseRun};
}

/// Writes a run of a list that is `to`; what becomes zero in its type is left out. The four threads of a list are
/// neighbours, from a multiple of four on. All threads of a block call it, some without anything to write; `counts`:
/// one for each, in shared memory.
template <class T, class A>
FUSEDSC_DEVICE void write_compressed_run(const A (&values)[kSparseRun], bool is_given, const CompressedList& to,
                                         int* counts) {
  constexpr int kRuns = kSparseList / kSparseRun;
  const int run = thread_index() % kRuns;
  T stored[kSparseRun];
  int count = 0;
#pragma unroll
  for (int i = 0; i < kSparseRun; ++i) {
    from_accumulator(values[i], stored[i]);
    count += to_accumulator(stored[i]) != A(0) ? 1 : 0;
  }
  counts[thread_index()] = count;
  block_barrier();
  int before = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int of_run = counts[thread_index() - run + i];
    before += i < run ? of_run : 0;
    all += of_run;
  }
  block_barrier();
  if (!is_given) return;
  *to.count = static_cast<std::uint8_t>(count);
  int next = before, next_zero = all + run * kSparseRun - before;
#pragma unroll
  for (int i = 0; i < kSparseRun; ++i) {
    const bool is_zero = to_accumulator(stored[i]) == A(0);
    const int place = is_zero ? next_zero++ : next++;
    from_accumulator(is_zero ? A(0) : to_accumulator(stored[i]), static_cast<T*>(to.values)[place]);
    to.channels[place] = static_cast<std::uint8_t>(is_zero ? 0 : run * kSparseRun + i);
  }
}

}  // namespace fusedsc::gpu
