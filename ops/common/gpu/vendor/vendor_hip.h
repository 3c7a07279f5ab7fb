/// Device code on AMD GPUs.
#pragma once

#include <cstdint>
#ifndef FUSEDSC_DEVICE_ONLY
#include <hip/hip_runtime.h>

#include <stdexcept>
#include <string>
#endif

#include "fusedsc/common/data_type.h"
#include "fusedsc/common/gpu/vendor/vendor_common.h"

#if defined(__GFX11__) || defined(__GFX12__)
/// Five waves leave each all 256 registers that an instruction can name. That said, clang 22 orders the loads of a
/// depthwise kernel so that it takes 185; not said, it spills 160 bytes more. Products of matrices do without.
#define FUSEDSC_KERNEL(threads, blocks) \
  __global__ void __launch_bounds__(threads) __attribute__((amdgpu_waves_per_eu(5)))
#define FUSEDSC_MATRIX_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads)
#else
#define FUSEDSC_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads)  // more blocks would cost spills
#endif

// Which instructions multiply matrices (matrix_cores.h).
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__) || \
    defined(__gfx9_4_generic__)
#define FUSEDSC_MFMA
/// Kernels of which more than two blocks shall fit have 256 registers: with more, sums are in registers of another
/// kind, and moved around products. But not those of double, whose elements `T` take two each: they would spill.
#define FUSEDSC_MATRIX_KERNEL(threads, blocks) FUSEDSC_MATRIX_KERNEL_OF(T, threads, blocks)
#define FUSEDSC_MATRIX_KERNEL_OF(T, threads, blocks) \
  __global__ void __launch_bounds__(threads, (blocks) > 2 && sizeof(T) < 8 ? 2 : 1)
#elif defined(__GFX11__)
#define FUSEDSC_WMMA 11
#elif defined(__gfx1200__) || defined(__gfx1201__) || defined(__gfx12_generic__)  // not gfx1250, which has others
#define FUSEDSC_WMMA 12
#endif

/// Blocks of kernels of matrix products with fusion that shall fit: so that they have 256 registers, too. Those that
/// would spill say 2.
#define FUSEDSC_FUSED_PRODUCT_BLOCKS 3

namespace fusedsc::gpu {

/// 64 on GCN and CDNA. RDNA runs HIP's kernels 32 wide.
FUSEDSC_DEVICE int wave_size() {
#if defined(__AMDGCN_WAVEFRONT_SIZE)
  return __AMDGCN_WAVEFRONT_SIZE;
#elif defined(__HIP_DEVICE_COMPILE__)
  return static_cast<int>(__builtin_amdgcn_wavefrontsize());  // ROCm 7 has no macro any more
#else
  return 64;  // the host's side of the compilation, where device code is only looked at
#endif
}

template <class T>
FUSEDSC_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor(value, mask, wave_size());
}

/// Tiles of shared memory that are worth having, of which all but one are filled ahead of their use.
inline constexpr int kCopyStages = 1;

/// As on NVIDIA GPUs, which copy while the thread goes on.
template <int kBytes>
FUSEDSC_DEVICE void start_copy(void* to, const void* from, bool valid) {
  using Words = std::uint32_t __attribute__((ext_vector_type(kBytes / 4)));
  *static_cast<Words*>(to) = valid ? *static_cast<const Words*>(from) : Words(0);
}
/// The first `bytes` of them, and zeros for the others.
template <int kBytes>
FUSEDSC_DEVICE void start_copy_of(void* to, const void* from, int bytes) {
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) {
    static_cast<std::uint32_t*>(to)[i] = 4 * i < bytes ? static_cast<const std::uint32_t*>(from)[i] : 0;
  }
}
FUSEDSC_DEVICE void commit_copies() {}
template <int kGroups>
FUSEDSC_DEVICE void wait_for_copies() {}

/// Copies keep their thread waiting: rows ahead are better kept in registers.
inline constexpr bool kCopiesRunAhead = false;

FUSEDSC_DEVICE float to_float(Float16 value) { return static_cast<float>(__builtin_bit_cast(_Float16, value.bits)); }
FUSEDSC_DEVICE float to_float(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}
/// Both halves of a word, the low one first.
template <class Half>
FUSEDSC_DEVICE void to_floats(std::uint32_t word, float& first, float& second, Half) {
  first = to_float(Half{static_cast<std::uint16_t>(word)});
  second = to_float(Half{static_cast<std::uint16_t>(word >> 16)});
}
FUSEDSC_DEVICE std::uint16_t to_bits(float value, Float16) {
  return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(value));
}
/// Rounds to nearest even; these GPUs have no instruction for it.
FUSEDSC_DEVICE std::uint16_t to_bits(float value, BFloat16) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return static_cast<std::uint16_t>((value != value ? bits | 0x400000u : rounded) >> 16);
}
template <class Half>
FUSEDSC_DEVICE std::uint32_t to_bits(float first, float second, Half half) {
  return to_bits(first, half) | static_cast<std::uint32_t>(to_bits(second, half)) << 16;
}

template <class T>
FUSEDSC_DEVICE T propagating_max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
FUSEDSC_DEVICE T propagating_min(T a, T b) {
  return a > b ? b : a;
}

// ------------------------------------------------------------------------------------------------------------ host
#ifndef FUSEDSC_DEVICE_ONLY

using Stream = hipStream_t;

inline void check_vendor(hipError_t error, const char* what) {
  if (error == hipSuccess) return;
  static_cast<void>(hipGetLastError());  // so that the next call does not find it again
  throw std::runtime_error(std::string(what) + ": " + hipGetErrorString(error) + " (" + hipGetErrorName(error) + ")");
}

/// The most that a block may have, on any of them.
inline constexpr std::size_t kSharedMemoryLimit = 64 * 1024;
inline std::size_t shared_memory_limit() { return kSharedMemoryLimit; }

/// Blocks of so many threads that one launch runs at most: the threads of a launch are counted in 32 bits.
inline std::int64_t most_blocks(int threads) { return 0xffffffffLL / threads; }

inline int current_device() {
  int device = 0;
  check_vendor(hipGetDevice(&device), "gpu: asking for the current device");
  return device;
}

/// The current device's, with its architecture. Asking takes a millisecond.
inline std::string device_name() {
  hipDeviceProp_t facts{};
  check_vendor(hipGetDeviceProperties(&facts, current_device()), "gpu: asking for its name");
  return std::string(facts.name) + ' ' + facts.gcnArchName;
}

/// Of the current device.
inline int multiprocessors() {
  const int device = current_device();
  return remembered(device, [device] {
    int count = 0;
    check_vendor(hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device),
                 "gpu: asking for its size");
    return count;
  });
}

/// Blocks of `kernel` that the current device runs at the same time.
template <class Parameters>
int resident_blocks(void (*kernel)(Parameters), int threads, std::size_t shared_memory_bytes) {
  return remembered(reinterpret_cast<const void*>(kernel), current_device(), shared_memory_bytes, [&] {
    int blocks = 0;
    check_vendor(hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<const void*>(kernel), threads,
                                                              shared_memory_bytes),
                 "gpu: asking how many blocks fit it");
    return multiprocessors() * (blocks > 0 ? blocks : 1);
  });
}

template <class Parameters>
void start(void (*kernel)(Parameters), unsigned blocks, unsigned threads, std::size_t shared_memory_bytes,
           Stream stream, const Parameters& parameters, const char* name) {
  kernel<<<blocks, threads, shared_memory_bytes, stream>>>(parameters);
  check_vendor(hipGetLastError(), name);
}

#endif
}  // namespace fusedsc::gpu
