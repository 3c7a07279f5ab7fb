/// Carves typed arrays out of the caller's workspace. The same function that carves can first run on a null workspace
/// to learn how much it needs, so that size and use cannot disagree. The addresses it then hands out must not be
/// touched; they are not null, so that what is given and what is not looks the same as later.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  explicit Arena(void* workspace)
      : base_(workspace != nullptr ? reinterpret_cast<std::uintptr_t>(workspace) : kAlignment) {}

  /// `count` elements, aligned to a cache line, uninitialised.
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t offset = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(base_ + offset);
  }

  std::size_t used() const { return used_; }

 private:
  std::uintptr_t base_;
  std::size_t used_ = 0;
};

/// One value per channel of `x`, of the type that goes with its elements: statistics, coefficients, sums.
inline ChannelVector take_channels(Arena& arena, const ConstTensorView& x) {
  const DataType dtype = accumulation_type(x.dtype);
  return {arena.take<char>(x.sizes[1] * static_cast<std::int64_t>(size_of(dtype))), dtype, x.sizes[1], x.device};
}

/// What the arena has left of the workspace, for an operator that runs as a part of another.
inline Execution rest_of(const Execution& execution, const Arena& arena) {
  Execution rest = execution;
  rest.workspace = static_cast<char*>(execution.workspace) + arena.used();
  rest.workspace_bytes = execution.workspace_bytes - arena.used();
  return rest;
}

}  // namespace fusedsc
