/// Software prefetching between arithmetic: what the next tile will touch is fetched while this one is computed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fusedsc {

inline constexpr std::int64_t kCacheLine = 64;  ///< bytes

/// A short queue of address ranges, walked cache line by cache line from inside the matrix products. Without it compute
/// and memory times add up: the hardware prefetchers lose the thread at every change of row, tile and tensor.
class Prefetcher {
 public:
  static constexpr std::int64_t kInterval = 4;

  /// Queues `rows` rows of `bytes` bytes, `row_stride` bytes apart. A row that follows the one queued last joins it;
  /// ranges past the queue's length are dropped.
  void add(const void* from, std::int64_t bytes, std::int64_t rows = 1, std::int64_t row_stride = 0) {
    if (bytes <= 0 || rows <= 0) return;
    if (rows == 1 && count_ > 0) {
      Rows& last = ranges_[count_ - 1];
      if (last.count == 1 && last.at + last.bytes == from) {
        last.bytes += bytes;
        lines_ += (bytes + kCacheLine - 1) / kCacheLine;
        return;
      }
    }
    if (count_ == kRanges) return;
    ranges_[count_++] = {static_cast<const char*>(from), bytes, rows, row_stride};
    lines_ += rows * ((bytes + kCacheLine - 1) / kCacheLine);
  }

  /// Starts walking the queue, at a pace that ends it within `steps` steps.
  void start(std::int64_t steps) {
    const std::int64_t bursts = std::max<std::int64_t>(steps / kInterval, 1);
    pace_ = std::max<std::int64_t>((lines_ + bursts - 1) / bursts, 1);
    advance();
  }

  void clear() { *this = Prefetcher(); }

  /// The walk's state while a loop holds it in registers: one step per iteration.
  class Walk {
   public:
    explicit Walk(Prefetcher& owner) : owner_(owner), wait_(owner.wait_) {}
    ~Walk() { owner_.wait_ = wait_; }
    Walk(const Walk&) = delete;
    Walk& operator=(const Walk&) = delete;

    [[gnu::always_inline]] void step() {
      if (__builtin_expect(--wait_ == 0, false)) {
        wait_ = kInterval;
        owner_.burst();
      }
    }

   private:
    Prefetcher& owner_;
    std::int64_t wait_;
  };

 private:
  struct Rows {
    const char* at;
    std::int64_t bytes, count, row_stride;
  };
  static constexpr int kRanges = 8;

  [[gnu::always_inline]] void burst() {
    const char* at = at_;
    for (std::int64_t i = 0; i < pace_; ++i) {
      __builtin_prefetch(at, 0, 2);  // into the second-level cache: the first one holds the running tile
      at += kCacheLine;
      if (__builtin_expect(at >= end_, false)) {
        advance();
        at = at_;
      }
    }
    at_ = at;
  }

  /// On to the next row, or to rest when there is none.
  [[gnu::noinline]] void advance() {
    while (first_ < count_ && ranges_[first_].count == 0) ++first_;
    if (first_ == count_) {
      clear();
      return;
    }
    Rows& rows = ranges_[first_];
    at_ = rows.at;
    end_ = rows.at + rows.bytes;
    rows.at += rows.row_stride;
    --rows.count;
  }

  Rows ranges_[kRanges];
  int first_ = 0, count_ = 0;
  std::int64_t lines_ = 0;
  std::int64_t wait_ = kInterval;
  std::int64_t pace_ = 0;  ///< lines per step; 0 at rest
  const char* at_ = nullptr;
  const char* end_ = nullptr;
};

/// For loops that run without: nothing is left of it.
struct NoPrefetcher {
  struct Walk {
    explicit Walk(NoPrefetcher&) {}
    void step() {}
  };
};

}  // namespace fusedsc
