/// Device code on NVIDIA GPUs.
#pragma once

#include <cstdint>
#ifndef FUSEDSC_DEVICE_ONLY
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#endif

#include "fusedsc/common/data_type.h"
#include "fusedsc/common/gpu/vendor/vendor_common.h"

#define FUSEDSC_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
/// There are products of TensorFloat-32.
#define FUSEDSC_TF32

namespace fusedsc::gpu {

FUSEDSC_DEVICE constexpr int wave_size() { return 32; }
inline bool has_tf32() { return true; }

template <class T>
FUSEDSC_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// Tiles of shared memory that are worth having, of which all but one are filled ahead of their use.
inline constexpr int kCopyStages = 3;

/// Starts copying the first `bytes` of kBytes (4, 8 or 16) to shared memory, and zeros for the others, which are not
/// read. Copies are counted in groups that commit_copies ends.
template <int kBytes>
FUSEDSC_DEVICE void start_copy_of(void* to, const void* from, int bytes) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}
/// All of them; zeros if not `valid`, and then nothing is read.
template <int kBytes>
FUSEDSC_DEVICE void start_copy(void* to, const void* from, bool valid) {
  start_copy_of<kBytes>(to, from, valid ? kBytes : 0);
}
FUSEDSC_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until the thread's own copies have arrived, but for the last kGroups groups.
template <int kGroups>
FUSEDSC_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Whether copies run ahead of their thread, so that rows on their way need no registers.
inline constexpr bool kCopiesRunAhead = true;

FUSEDSC_DEVICE float to_float(Float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
FUSEDSC_DEVICE float to_float(BFloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
/// Both halves of a word, the low one first: an instruction each.
FUSEDSC_DEVICE void to_floats(std::uint32_t word, float& first, float& second, Float16) {
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(first), "=f"(second)
      : "r"(word));
}
FUSEDSC_DEVICE void to_floats(std::uint32_t word, float& first, float& second, BFloat16) {
  first = __uint_as_float(word << 16);
  second = __uint_as_float(word & 0xffff0000u);
}
FUSEDSC_DEVICE std::uint16_t to_bits(float value, Float16) {
  std::uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}
FUSEDSC_DEVICE std::uint16_t to_bits(float value, BFloat16) {
  std::uint16_t result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}
/// Two at once, the first in the low half: one instruction.
FUSEDSC_DEVICE std::uint32_t to_bits(float first, float second, Float16) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
FUSEDSC_DEVICE std::uint32_t to_bits(float first, float second, BFloat16) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

FUSEDSC_DEVICE float propagating_max(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
FUSEDSC_DEVICE float propagating_min(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
FUSEDSC_DEVICE double propagating_max(double a, double b) { return a < b ? b : a; }
FUSEDSC_DEVICE double propagating_min(double a, double b) { return a > b ? b : a; }

// ------------------------------------------------------------------------------------------------------------ host
#ifndef FUSEDSC_DEVICE_ONLY

using Stream = cudaStream_t;

inline void check_vendor(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not find it again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

/// The most that a block may have on the GPUs that kernels for one architecture are for.
inline constexpr std::size_t kSharedMemoryLimit = 227 * 1024;

/// Blocks that one launch runs at most, of any number of threads.
inline std::int64_t most_blocks(int /*threads*/) { return 0x7fffffff; }

inline int current_device() {
  int device = 0;
  check_vendor(cudaGetDevice(&device), "gpu: asking for the current device");
  return device;
}

/// The current device's, with its architecture. Asking takes a millisecond.
inline std::string device_name() {
  cudaDeviceProp facts{};
  check_vendor(cudaGetDeviceProperties(&facts, current_device()), "gpu: asking for its name");
  return std::string(facts.name) + " sm" + std::to_string(facts.major) + std::to_string(facts.minor);
}

/// Shared memory beyond what a kernel may have unasked. The permission stays, so it is asked for the most at once:
/// asking takes as long as half a launch.
template <class Parameters>
void allow_shared_memory(void (*kernel)(Parameters), std::size_t bytes) {
  constexpr std::size_t kUnasked = 48 * 1024;
  if (bytes <= kUnasked) return;
  const int device = current_device();
  remembered(reinterpret_cast<const void*>(kernel), device, 0, [kernel, device] {
    int most = 0;
    cudaFuncAttributes its{};
    check_vendor(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                 "gpu: asking for its shared memory");
    check_vendor(cudaFuncGetAttributes(&its, kernel), "gpu: asking for a kernel's own shared memory");
    most -= static_cast<int>(its.sharedSizeBytes);
    check_vendor(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                 "gpu: asking for shared memory");
    return most;
  });
}

/// The most that a block of any kernel may have on the current device: 227 KB on Hopper GPUs, 163 on an A100, 99 on
/// GeForce and RTX cards since Ampere.
inline std::size_t shared_memory_limit() {
  const int device = current_device();
  return static_cast<std::size_t>(remembered(device, [device] {
    int most = 0;
    check_vendor(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                 "gpu: asking for its shared memory");
    return most;
  }));
}

/// Of the current device.
inline int multiprocessors() {
  const int device = current_device();
  return remembered(device, [device] {
    int count = 0;
    check_vendor(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "gpu: asking for its size");
    return count;
  });
}

/// Blocks of `kernel` that the current device runs at the same time.
template <class Parameters>
int resident_blocks(void (*kernel)(Parameters), int threads, std::size_t shared_memory_bytes) {
  return remembered(reinterpret_cast<const void*>(kernel), current_device(), shared_memory_bytes, [&] {
    int blocks = 0;
    allow_shared_memory(kernel, shared_memory_bytes);
    check_vendor(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_memory_bytes),
                 "gpu: asking how many blocks fit it");
    return multiprocessors() * (blocks > 0 ? blocks : 1);
  });
}

template <class Parameters>
void start(void (*kernel)(Parameters), unsigned blocks, unsigned threads, std::size_t shared_memory_bytes,
           Stream stream, const Parameters& parameters, const char* name) {
  allow_shared_memory(kernel, shared_memory_bytes);
  kernel<<<blocks, threads, shared_memory_bytes, stream>>>(parameters);
  check_vendor(cudaGetLastError(), name);
}

#endif
}  // namespace fusedsc::gpu
