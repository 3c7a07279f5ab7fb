/// Carves typed arrays out of the caller's workspace. The same function that carves can first run on a null workspace
/// to learn how much it needs, so that size and use cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fusedsc {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  explicit Arena(void* workspace) : base_(static_cast<char*>(workspace)) {}

  /// `count` elements, aligned to a cache line, uninitialised. Null when the workspace is.
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t offset = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace fusedsc
