/// Kernels whose launch may overlap the end of the one before them in the stream, as they wait for its results
/// themselves.
#pragma once

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/vendor/launch.h"

namespace fusedsc::gpu {

/// By each thread of the following kernel before it touches memory that other kernels know, or by others of its block
/// before a barrier that it passes.
FUSEDSC_DEVICE void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The next kernel of the stream may start, if it is a following one; what it does before wait_for_previous_kernel()
/// must not need this one's results.
FUSEDSC_DEVICE void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifndef FUSEDSC_DEVICE_ONLY
/// Shared memory to ask for in place of `bytes`, so that no multiprocessor takes more than its share of the blocks.
/// Those of a following kernel come wherever there is room while the kernel before has the rest: some multiprocessors
/// would get several of them and others none. It costs first-level cache, and what many small blocks gain by beginning
/// beside the last ones of the kernel before.
inline std::size_t spread(std::int64_t blocks, std::size_t bytes) {
#if defined(__CUDACC__) && !defined(FUSEDSC_HOST_EXECUTOR)
  constexpr std::int64_t kUnit = 128;
  const int device = current_device();
  const auto ask = [device](cudaDeviceAttr attribute) {
    int value = 0;
    check_vendor(cudaDeviceGetAttribute(&value, attribute, device), "gpu: asking for a multiprocessor's memory");
    return value;
  };
  const bool overlaps = remembered(device, [&] { return ask(cudaDevAttrComputeCapabilityMajor); }) >= 9;
  const int all = remembered(device, [&] { return ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor); });
  const int own = remembered(device, [&] { return ask(cudaDevAttrReservedSharedMemoryPerBlock); });
  const std::int64_t share = divide_up(blocks, multiprocessors());
  const std::int64_t too_much_for_more = all / (share + 1) - own + kUnit;
  if (overlaps && too_much_for_more > static_cast<std::int64_t>(bytes)) {
    return static_cast<std::size_t>(too_much_for_more);
  }
#else
  static_cast<void>(blocks);
#endif
  return bytes;
}

/// As launch(), of such a kernel.
template <class Parameters>
void launch_following(const char* name, void (*kernel)(Parameters), std::int64_t blocks, int threads, void* stream,
                      const Parameters& parameters, std::size_t shared_memory_bytes = 0) {
#if defined(__CUDACC__) && !defined(FUSEDSC_HOST_EXECUTOR)
  if (blocks == 0) return;
  check_blocks(name, blocks, threads);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_memory_bytes;
  config.stream = static_cast<Stream>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  allow_shared_memory(kernel, shared_memory_bytes);
  check_vendor(cudaLaunchKernelEx(&config, kernel, parameters), name);
#else
  launch(name, kernel, blocks, threads, shared_memory_bytes, stream, parameters);
#endif
}

#endif
}  // namespace fusedsc::gpu
