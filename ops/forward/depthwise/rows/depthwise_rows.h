/// Rows that a thread has asked for ahead of their use. On their way they take registers, or, where copies to shared
/// memory run ahead of the thread, none: then more of them can be under way, with exact waits for the oldest.
#pragma once

#include <type_traits>

#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

namespace fusedsc::gpu {

/// Whether rows of vectors of kChannels elements go through shared memory. Copies have at least 4 bytes; 4 of them for
/// one channel cost more than they hide where a row is little work.
template <class T, int kChannels, int kKernel>
inline constexpr bool kRowsInMemory = kCopiesRunAhead && sizeof(T) * kChannels >= 4 && (kChannels > 1 || kKernel > 3);

/// How many rows ahead an instance asks for: `ahead`, or what registers allow without longer periods of rows.
template <class T, int kChannels, int kKernel>
constexpr int rows_ahead(int stride, int ahead) {
  const int period = ((kKernel - 1) / stride + 1) * stride;
  if (kRowsInMemory<T, kChannels, kKernel> || (kCopiesRunAhead && kChannels == 1)) return ahead;
  return period <= 4 ? period - 1 : 0;
}

/// Blocks at a time of kernels with fusion whose rows are too many for registers: none where they would have to lie
/// there; narrower ones serve.
inline constexpr int kWideFusedBlocks = kCopiesRunAhead ? 2 : 0;

template <class Source, int kAhead>
class RowsInRegisters {
 public:
  static constexpr int kBytes = 0;

  FUSEDSC_DEVICE explicit RowsInRegisters(std::size_t) {}
  FUSEDSC_DEVICE void ask(Source& source, int r) { source.load(rows_[r % (kAhead + 1)]); }
  FUSEDSC_DEVICE const typename Source::Row& take(Source&, int r) { return rows_[r % (kAhead + 1)]; }

 private:
  typename Source::Row rows_[kAhead + 1];
};

template <class Source, int kAhead>
class RowsInMemory {
 public:
  static constexpr int kBytes = (kAhead + 1) * Source::kRowBytes * kItemThreads;  ///< of a block

  /// `offset`: into the block's memory.
  FUSEDSC_DEVICE explicit RowsInMemory(std::size_t offset) : memory_(static_cast<char*>(shared_memory()) + offset) {}
  FUSEDSC_DEVICE void ask(Source& source, int r) { source.start_copies(slot(r)); }
  FUSEDSC_DEVICE typename Source::Row take(Source& source, int r) {
    typename Source::Row row;
    source.read_copies(slot(r), row);
    return row;
  }

 private:
  FUSEDSC_DEVICE char* slot(int r) const { return memory_ + r % (kAhead + 1) * (Source::kRowBytes * kItemThreads); }
  char* memory_;
};

/// Row r is asked for by ask(source, r) and there for take(source, r) after kAhead more.
template <class Source, int kAhead>
using RowsAhead = std::conditional_t<Source::kInMemory, RowsInMemory<Source, kAhead>, RowsInRegisters<Source, kAhead>>;

}  // namespace fusedsc::gpu
