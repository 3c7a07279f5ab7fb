/// Where the memory of tests lies: the program's own or, for operators on a GPU, memory that it and the CPU both reach.
#pragma once

#include <cstddef>
#include <new>

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::reference {

struct MemorySource {
  Device device;
  void* (*allocate)(std::size_t bytes);  ///< aligned to 64 bytes
  void (*release)(void* memory, std::size_t bytes);
  void (*wait)();  ///< until the device is done with it
};

/// For tensors and workspaces from now on; before the first of them.
void use_memory(const MemorySource& source);
const MemorySource& memory();

/// Of that memory, for containers.
template <class T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <class Other>
  Allocator(const Allocator<Other>&) {}  // NOLINT(google-explicit-constructor): as allocators must

  T* allocate(std::size_t count) { return static_cast<T*>(memory().allocate(count * sizeof(T))); }
  void deallocate(T* elements, std::size_t count) { memory().release(elements, count * sizeof(T)); }
  bool operator==(const Allocator&) const = default;
};

}  // namespace fusedsc::reference
