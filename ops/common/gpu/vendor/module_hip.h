/// Modules on AMD GPUs.
#pragma once

#include <optional>
#include <string>

#include "fusedsc/common/gpu/vendor/vendor_hip.h"

namespace fusedsc::gpu {

/// Of the current device: "gfx90a:sramecc+:xnack-".
inline std::string architecture() {
  hipDeviceProp_t facts{};
  check_vendor(hipGetDeviceProperties(&facts, current_device()), "gpu: asking for its architecture");
  return facts.gcnArchName;
}

inline std::optional<std::string> linked_kernel(const std::string& /*text*/) { return {}; }

/// On the device that is current when it is loaded, until the process ends.
class HipModule {
 public:
  HipModule(const std::string& code, std::size_t shared_memory_bytes) : shared_memory_bytes_(shared_memory_bytes) {
    hipModule_t module = nullptr;
    check_vendor(hipModuleLoadData(&module, code.data()), "loading a generated kernel");
    check_vendor(hipModuleGetFunction(&function_, module, "fusedsc_kernel"), "looking for a generated kernel");
  }

  /// Of the current device.
  int resident_blocks(int threads) const {
    int blocks = 0;
    check_vendor(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, threads, shared_memory_bytes_),
                 "gpu: asking how many blocks fit it");
    return multiprocessors() * (blocks > 0 ? blocks : 1);
  }

  template <class Parameters>
  void start(const char* name, unsigned blocks, unsigned threads, Stream stream, const Parameters& parameters) const {
    void* arguments[] = {const_cast<Parameters*>(&parameters)};
    check_vendor(hipModuleLaunchKernel(function_, blocks, 1, 1, threads, 1, 1,
                                       static_cast<unsigned>(shared_memory_bytes_), stream, arguments, nullptr),
                 name);
  }

 private:
  hipFunction_t function_ = nullptr;
  std::size_t shared_memory_bytes_;
};

using Module = HipModule;

}  // namespace fusedsc::gpu
