/// Checked launches.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/gpu.h"
#include "fusedsc/common/status.h"

namespace fusedsc::gpu {

/// Runs `kernel` on `blocks` blocks in the order of `stream`. Blocks are counted along one axis, which goes to 2^31 - 1
/// on every GPU. A launch that fails throws, naming the kernel.
template <class Parameters>
void launch(const char* name, void (*kernel)(Parameters), std::int64_t blocks, int threads,
            std::size_t block_memory_bytes, void* stream, const Parameters& parameters) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported(std::string(name) + ": the problem needs " + std::to_string(blocks) +
                      " blocks; a GPU runs at most 2147483647 at once: split the batch");
  }
  start(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), block_memory_bytes,
        static_cast<Stream>(stream), parameters, name);
}

}  // namespace fusedsc::gpu
