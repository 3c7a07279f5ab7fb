/// What compilers are told of where a pointer points.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// The same pointer, to global memory. AMD's compiler sees that by itself of pointers that come straight from a
/// kernel's parameters, but not of a variable that only a loop's first turn sets. From there it loads by `flat_load`,
/// which counts as an access to shared memory, too: what waits for shared memory then waits for global memory.
template <class T>
FUSEDSC_DEVICE T* in_global_memory(T* pointer) {
#if defined(__AMDGCN__)
  using Global = __attribute__((address_space(1))) T;
  // By way of an integer: a pointer cast there and back is dropped before the compiler looks for address spaces.
  return (T*)reinterpret_cast<Global*>(reinterpret_cast<std::uintptr_t>(pointer));
#else
  return pointer;
#endif
}

}  // namespace fusedsc::gpu
