/// Device code that CUDA and HIP write alike. Included by vendor_cuda.h and vendor_hip.h, behind the vendor's own
/// headers. FUSEDSC_DEVICE_ONLY: a compiler at run time reads this (ops/tuning/compiler), which knows no host.
#pragma once

#include <cstdint>
#ifndef FUSEDSC_DEVICE_ONLY
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#endif

#include "fusedsc/common/host_device.h"

#define FUSEDSC_DEVICE __device__ __forceinline__

namespace fusedsc::gpu {

FUSEDSC_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FUSEDSC_DEVICE unsigned block_index() { return blockIdx.x; }
FUSEDSC_DEVICE unsigned block_count() { return gridDim.x; }
FUSEDSC_DEVICE void block_barrier() { __syncthreads(); }

FUSEDSC_DEVICE void* shared_memory() {
  extern __shared__ __align__(16) unsigned char fusedsc_shared_memory[];
  return fusedsc_shared_memory;
}

#ifndef FUSEDSC_DEVICE_ONLY
/// ask(), the first time that a kernel, on a device and with so much shared memory, is asked about; later what it was.
template <class Ask>
int remembered(const void* kernel, int device, std::size_t shared_memory_bytes, const Ask& ask) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, std::size_t>, int> answers;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(kernel, device, shared_memory_bytes);
  if (const auto found = answers.find(key); found != answers.end()) return found->second;
  return answers[key] = ask();
}

/// ask(), a number that is not negative, the first time that it is asked about a device; later what it was. Every
/// `Ask` is a question of its own, with its own answers.
template <class Ask>
int remembered(int device, const Ask& ask) {
  constexpr int kMostDevices = 64;
  static std::array<std::atomic<int>, kMostDevices> answers;  // each one more than it was; 0: not asked yet
  if (device >= kMostDevices) return ask();
  std::atomic<int>& answer = answers[static_cast<std::size_t>(device)];
  if (answer.load(std::memory_order_relaxed) == 0) answer.store(ask() + 1, std::memory_order_relaxed);
  return answer.load(std::memory_order_relaxed) - 1;
}
#endif

FUSEDSC_HOST_DEVICE std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(a) * b) >> 32);
}

}  // namespace fusedsc::gpu
