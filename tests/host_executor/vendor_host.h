/// Device code on the CPU, for tests: what vendor_cuda.h and vendor_hip.h are for GPUs, on the host executor.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "fusedsc/common/cpu/float16.h"
#include "fusedsc/common/host_device.h"
#include "host_executor/executor.h"

#define FUSEDSC_DEVICE inline
#define FUSEDSC_KERNEL(threads, blocks) void
/// There are products of TensorFloat-32.
#define FUSEDSC_TF32

namespace fusedsc::gpu {

inline int thread_index() { return executor::current_thread().index; }
inline unsigned block_index() { return executor::current_thread().block; }
inline unsigned block_count() { return executor::current_thread().blocks; }
inline int wave_size() { return executor::wave_size(); }
inline bool has_tf32() { return wave_size() == 32; }  // as on the GPUs that have it
inline void block_barrier() { executor::block_barrier(); }
inline void* shared_memory() { return executor::shared_memory(); }

template <class T>
T shuffle_xor(T value, int mask) {
  executor::exchange(&value, sizeof value, mask);
  return value;
}

/// Tiles of shared memory that are worth having, of which all but one are filled ahead of their use.
#ifdef FUSEDSC_HOST_COPIES_WAIT
inline constexpr int kCopyStages = 1;
#else
inline constexpr int kCopyStages = 2;
#endif

/// As on NVIDIA GPUs, which copy while the thread goes on.
template <int kBytes>
void start_copy(void* to, const void* from, bool valid) {
  struct alignas(kBytes) Run {
    std::uint32_t words[kBytes / 4];
  };
  *static_cast<Run*>(to) = valid ? *static_cast<const Run*>(from) : Run{};
}
/// Of the first `bytes` of them; zeros for the others.
template <int kBytes>
void start_copy_of(void* to, const void* from, int bytes) {
  struct alignas(kBytes) Run {
    unsigned char bytes[kBytes];
  } run{};
  std::memcpy(run.bytes, from, static_cast<std::size_t>(bytes));
  *static_cast<Run*>(to) = run;
}
inline void commit_copies() {}
template <int kGroups>
void wait_for_copies() {}

/// Whether copies run ahead of their thread, so that rows on their way need no registers: as on NVIDIA's GPUs, or not,
/// as on AMD's.
#ifdef FUSEDSC_HOST_COPIES_WAIT
inline constexpr bool kCopiesRunAhead = false;
#else
inline constexpr bool kCopiesRunAhead = true;
#endif

inline std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(a) * b) >> 32);
}

using fusedsc::to_float;
/// Both halves of a word, the low one first.
template <class Half>
void to_floats(std::uint32_t word, float& first, float& second, Half) {
  first = to_float(Half{static_cast<std::uint16_t>(word)});
  second = to_float(Half{static_cast<std::uint16_t>(word >> 16)});
}
inline std::uint16_t to_bits(float value, Float16) { return to_float16(value).bits; }
inline std::uint16_t to_bits(float value, BFloat16) { return to_bfloat16(value).bits; }
template <class Half>
std::uint32_t to_bits(float first, float second, Half half) {
  return to_bits(first, half) | static_cast<std::uint32_t>(to_bits(second, half)) << 16;
}

template <class T>
T propagating_max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T propagating_min(T a, T b) {
  return a > b ? b : a;
}

using Stream = void*;

inline constexpr std::size_t kSharedMemoryLimit = 64 * 1024;
inline std::size_t shared_memory_limit() { return executor::shared_memory_limit(); }
inline std::int64_t most_blocks(int threads) { return 0xffffffffLL / threads; }  // as on AMD's GPUs

inline std::string device_name() { return "host executor wave" + std::to_string(wave_size()); }
inline int multiprocessors() { return executor::multiprocessors(); }

template <class Parameters>
int resident_blocks(void (*)(Parameters), int, std::size_t) {
  return executor::resident_blocks() * multiprocessors();
}

template <class Parameters>
void start(void (*kernel)(Parameters), unsigned blocks, unsigned threads, std::size_t shared_memory_bytes, Stream,
           const Parameters& parameters, const char*) {
  executor::run(blocks, threads, shared_memory_bytes, [&] { kernel(parameters); });
}

}  // namespace fusedsc::gpu
