// Tensors lie in pinned memory of the host, which kernels reach by the same addresses: tests look at every element, and
// are not about speed.
#include <map>
#include <vector>

#include "fusedsc/common/gpu/vendor/gpu.h"
#include "reference/memory.h"

#ifdef __HIP__
#define VENDOR(name) hip##name
#define VENDOR_WARP_SIZE hipDeviceAttributeWarpSize
#define VENDOR_PINNED(pointer, bytes) hipHostMalloc(pointer, bytes, hipHostMallocMapped)
#else
#define VENDOR(name) cuda##name
#define VENDOR_WARP_SIZE cudaDevAttrWarpSize
#define VENDOR_PINNED(pointer, bytes) cudaHostAlloc(pointer, bytes, cudaHostAllocMapped)
#endif

namespace fusedsc::reference {
namespace {

/// Pinning is slow: what is released is kept for the next tensor of its size class.
std::multimap<std::size_t, void*> kept;

std::size_t size_class(std::size_t bytes) {
  std::size_t size = 4096;
  while (size < bytes) size *= 2;
  return size;
}

void* allocate(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  if (const auto found = kept.find(size); found != kept.end()) {
    void* memory = found->second;
    kept.erase(found);
    return memory;
  }
  void* memory = nullptr;
  gpu::check_vendor(VENDOR_PINNED(&memory, size), "pinning memory");
  return memory;
}

}  // namespace

bool gpu_is_host_executor() { return false; }

std::vector<int> gpu_wave_sizes() {
  int lanes = 0;
  gpu::check_vendor(VENDOR(DeviceGetAttribute)(&lanes, VENDOR_WARP_SIZE, 0), "asking for the wave size");
  return {lanes};
}

void use_gpu_wave_size(int) {}

void use_gpu_shared_memory(std::size_t /*bytes*/) {}

int gpu_multiprocessors() { return gpu::multiprocessors(); }

std::vector<long> gpu_matrix_instructions(DataType) { return {}; }

const MemorySource& gpu_memory() {
  static const MemorySource source = {
      .device = Device::gpu,
      .allocate = allocate,
      .release = [](void* memory, std::size_t bytes) { kept.emplace(size_class(bytes), memory); },
      .wait = [] { gpu::check_vendor(VENDOR(DeviceSynchronize)(), "waiting for the GPU"); },
  };
  return source;
}

}  // namespace fusedsc::reference
