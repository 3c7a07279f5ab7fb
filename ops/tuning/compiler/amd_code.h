/// What AMD's machine code says of the kernel in it: hiprtc reports nothing, but the code carries what a launch needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fusedsc::tuning {

/// Of a thread, as the compiler left it.
struct AmdKernelResources {
  int vgprs = 0;          ///< vector registers; on gfx90a and gfx94x with those of `agprs`
  int agprs = 0;          ///< of matrix cores
  int sgprs = 0;          ///< scalar registers, of a wave
  int scratch_bytes = 0;  ///< of memory: what is kept there because there are no registers for it
};

/// Of the first kernel of a code object (ELF, with the metadata of code object version 3 or newer: LLVM, "User Guide
/// for AMDGPU Backend", section "Code Object Metadata"). Nothing where it is none, or damaged.
std::optional<AmdKernelResources> amd_kernel_resources(std::string_view code);

/// "64 VGPRs, 0 AGPRs, 30 SGPRs, 0 bytes of scratch memory".
std::string printed(const AmdKernelResources& resources);

}  // namespace fusedsc::tuning
