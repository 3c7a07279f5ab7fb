/// Read before every file that a clang newer than Debian's headers of HIP compiles: what they want of their own clang.
#pragma once

// How many threads a wave has: 64 on gfx9, 32 on later ones. The host's side only looks at device code.
#if defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__)
#define __AMDGCN_WAVEFRONT_SIZE 32
#else
#define __AMDGCN_WAVEFRONT_SIZE 64
#endif

#include <hip/hip_runtime.h>

/// Of hip.bc, which newer clangs do not link. The memory of all address spaces is ordered, as by hip.bc.
extern "C" __device__ inline __attribute__((always_inline)) void __atomic_work_item_fence(__cl_mem_fence_flags,
                                                                                          __memory_order order,
                                                                                          __memory_scope scope) {
#if defined(__HIP_DEVICE_COMPILE__)
#define FUSEDSC_FENCE(scope)                                                                 \
  if (order == __memory_order_acquire) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, scope);      \
  else if (order == __memory_order_release) __builtin_amdgcn_fence(__ATOMIC_RELEASE, scope); \
  else if (order == __memory_order_acq_rel) __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, scope); \
  else if (order == __memory_order_seq_cst) __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, scope);
  switch (scope) {
    case __memory_scope_work_item: break;
    case __memory_scope_sub_group: FUSEDSC_FENCE("wavefront") break;
    case __memory_scope_work_group: FUSEDSC_FENCE("workgroup") break;
    case __memory_scope_device: FUSEDSC_FENCE("agent") break;
    case __memory_scope_all_svm_devices: FUSEDSC_FENCE("") break;
  }
#undef FUSEDSC_FENCE
#endif
}
