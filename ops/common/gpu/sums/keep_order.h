/// Asking compilers to leave things in the order in which they are written. NVIDIA's, that is: others do.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// The compiler shall not know how it came to its value, and so not come to it elsewhere or in another way.
FUSEDSC_DEVICE void hide_origin(std::uint32_t& value) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(value));
#else
  static_cast<void>(value);
#endif
}
FUSEDSC_DEVICE void hide_origin(std::int64_t& value) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(value));
#else
  static_cast<void>(value);
#endif
}

/// An address of the GPU's memory: that it is one the compiler shall know, as otherwise its loads take longer.
template <class T>
FUSEDSC_DEVICE void hide_origin(const T*& address) {
#if defined(__CUDA_ARCH__)
  std::size_t place = __cvta_generic_to_global(address);
  asm volatile("" : "+l"(place));
  address = static_cast<const T*>(__cvta_global_to_generic(place));
#else
  static_cast<void>(address);
#endif
}

/// What the number is made of is worked out before, and loads that come before are asked for before, what comes behind
/// is waited for or stored. The number is below 2^31, which the compiler does not know: it sees a store to anywhere,
/// under a condition. Without it addresses are worked out only when another kernel has been waited for, and some loads
/// are left until others have arrived.
FUSEDSC_DEVICE void keep_order(std::uint32_t number) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{.reg .pred never; .reg .u64 anywhere; setp.lt.s32 never, %0, 0; cvt.u64.u32 anywhere, %0; @never st.u32 "
      "[anywhere], %0;}" ::"r"(number)
      : "memory");
#else
  static_cast<void>(number);
#endif
}

/// Of an address, for keep_order: it follows from the lower word, and is below 2^31.
FUSEDSC_DEVICE std::uint32_t upper_word(const void* address) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(address) >> 32);
}

}  // namespace fusedsc::gpu
