/// Modules on NVIDIA GPUs, by the driver, which is opened where it is first needed: programs that use no generated
/// kernel do not depend on it.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <optional>
#include <string>

#include "fusedsc/common/gpu/vendor/vendor_cuda.h"
#include "fusedsc/common/status.h"

namespace fusedsc::gpu {

/// The driver's functions.
struct Driver {
  decltype(&cuModuleLoadData) load = nullptr;
  decltype(&cuModuleGetFunction) function = nullptr;
  decltype(&cuFuncSetAttribute) set_attribute = nullptr;
  decltype(&cuOccupancyMaxActiveBlocksPerMultiprocessor) occupancy = nullptr;
  decltype(&cuLaunchKernelEx) launch = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;

  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw Unsupported(std::string("generated kernels need NVIDIA's driver: ") + dlerror());
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) {
        throw Unsupported(std::string("generated kernels need a newer driver of NVIDIA's: this one has no ") + name);
      }
    };
    find(load, "cuModuleLoadData");
    find(function, "cuModuleGetFunction");
    find(set_attribute, "cuFuncSetAttribute");
    find(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    find(launch, "cuLaunchKernelEx");
    find(error_string, "cuGetErrorString");
  }

  void check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    error_string(result, &text);
    throw std::runtime_error(std::string(what) + ": " + (text != nullptr ? text : "an error without a name"));
  }
};

inline const Driver& driver() {
  static const Driver driver;
  return driver;
}

/// Of the current device: "sm_90".
inline std::string architecture() {
  const int device = current_device();
  const auto ask = [device](cudaDeviceAttr attribute) {
    int value = 0;
    check_vendor(cudaDeviceGetAttribute(&value, attribute, device), "gpu: asking for its compute capability");
    return value;
  };
  const int major = remembered(device, [&] { return ask(cudaDevAttrComputeCapabilityMajor); });
  const int minor = remembered(device, [&] { return ask(cudaDevAttrComputeCapabilityMinor); });
  return "sm_" + std::to_string(major) + std::to_string(minor);
}

inline std::optional<std::string> linked_kernel(const std::string& /*text*/) { return {}; }

/// On the device that is current when it is loaded, until the process ends.
class CudaModule {
 public:
  CudaModule(const std::string& code, std::size_t shared_memory_bytes) : shared_memory_bytes_(shared_memory_bytes) {
    check_vendor(cudaFree(nullptr), "gpu: beginning to use it");  // so that there is a context
    CUmodule module = nullptr;
    driver().check(driver().load(&module, code.data()), "loading a generated kernel");
    driver().check(driver().function(&function_, module, "fusedsc_kernel"), "looking for a generated kernel");
    if (shared_memory_bytes > 48 * 1024) {
      driver().check(driver().set_attribute(function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            static_cast<int>(shared_memory_bytes)),
                     "asking for shared memory");
    }
  }

  /// Of the current device.
  int resident_blocks(int threads) const {
    int blocks = 0;
    driver().check(driver().occupancy(&blocks, function_, threads, shared_memory_bytes_),
                   "gpu: asking how many blocks fit it");
    return multiprocessors() * (blocks > 0 ? blocks : 1);
  }

  /// As launch_following().
  template <class Parameters>
  void start(const char* name, unsigned blocks, unsigned threads, Stream stream, const Parameters& parameters) const {
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = blocks;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = static_cast<unsigned>(shared_memory_bytes_);
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlaps() ? 1 : 0;
    void* arguments[] = {const_cast<Parameters*>(&parameters)};
    driver().check(driver().launch(&config, function_, arguments, nullptr), name);
  }

 private:
  /// Whether a kernel may start while the one before it ends.
  static bool overlaps() {
    const int device = current_device();
    return remembered(device, [device] {
             int major = 0;
             check_vendor(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                          "gpu: asking for its compute capability");
             return major;
           }) >= 9;
  }

  CUfunction function_ = nullptr;
  std::size_t shared_memory_bytes_;
};

using Module = CudaModule;

}  // namespace fusedsc::gpu
