#include "fusedsc/common/gpu/vendor/gpu.h"
#include "gpu/gpu_under_test.h"
#include "host_executor/executor.h"
#include "host_executor/matrix_cores_host.h"

namespace fusedsc::reference {

bool gpu_is_host_executor() { return true; }

std::vector<int> gpu_wave_sizes() { return {32, 64}; }

void use_gpu_wave_size(int lanes) { gpu::executor::set_wave_size(lanes); }

void use_gpu_shared_memory(std::size_t bytes) { gpu::executor::set_shared_memory_limit(bytes); }

int gpu_multiprocessors() { return gpu::multiprocessors(); }

std::vector<long> gpu_matrix_instructions([[maybe_unused]] DataType dtype) {
  if (gpu::wave_size() == 64) return {gpu::matrix_core_counts.mfma};
#ifdef FUSEDSC_HOST_COPIES_WAIT
  if (size_of(dtype) == 2) return {gpu::matrix_core_counts.wmma_gfx11, gpu::matrix_core_counts.wmma_gfx12};
#endif
  return {};
}

const MemorySource& gpu_memory() {
  static const MemorySource source = [] {
    MemorySource host = memory();
    host.device = Device::gpu;
    return host;
  }();
  return source;
}

}  // namespace fusedsc::reference
