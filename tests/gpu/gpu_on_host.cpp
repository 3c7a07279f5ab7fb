#include "fusedsc/common/gpu/vendor/gpu.h"
#include "gpu/gpu_under_test.h"
#include "host_executor/executor.h"

namespace fusedsc::reference {

std::vector<int> gpu_wave_sizes() { return {32, 64}; }

void use_gpu_wave_size(int lanes) { gpu::executor::set_wave_size(lanes); }

int gpu_multiprocessors() { return gpu::multiprocessors(); }

const MemorySource& gpu_memory() {
  static const MemorySource source = [] {
    MemorySource host = memory();
    host.device = Device::gpu;
    return host;
  }();
  return source;
}

}  // namespace fusedsc::reference
