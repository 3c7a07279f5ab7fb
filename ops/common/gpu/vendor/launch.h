/// Checked launches.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"
#ifndef FUSEDSC_DEVICE_ONLY
#include <string>

#include "fusedsc/common/status.h"

namespace fusedsc::gpu {

/// Throws if there are more blocks than one launch runs.
inline void check_blocks(const char* name, std::int64_t blocks, int threads) {
  const std::int64_t most = most_blocks(threads);
  if (blocks <= most) return;
  throw Unsupported(std::string(name) + ": the problem needs " + std::to_string(blocks) + " blocks of " +
                    std::to_string(threads) + " threads; this GPU runs at most " + std::to_string(most) +
                    " at once: split the batch");
}

/// Runs `kernel` on `blocks` blocks, counted along one axis, in the order of `stream`. A launch that fails throws,
/// naming the kernel.
template <class Parameters>
void launch(const char* name, void (*kernel)(Parameters), std::int64_t blocks, int threads,
            std::size_t shared_memory_bytes, void* stream, const Parameters& parameters) {
  if (blocks == 0) return;
  check_blocks(name, blocks, threads);
  start(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_memory_bytes,
        static_cast<Stream>(stream), parameters, name);
}

}  // namespace fusedsc::gpu
#endif
