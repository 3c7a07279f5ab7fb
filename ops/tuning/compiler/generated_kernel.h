/// A generated kernel, ready to be launched: its text compiled or found compiled, and loaded.
#pragma once

#include <memory>
#include <string>

#include "fusedsc/common/gpu/vendor/launch.h"
#include "fusedsc/common/gpu/vendor/module.h"
#include "fusedsc/tuning/compiler/binaries.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// Empty, or why there is no generated kernel for the current device at all.
std::string why_no_generated_kernels();

/// What an entry of generated kernels says of arguments: why it has no text for them, else why there can be no kernel,
/// or no config.
template <class Arguments>
std::string why_not_generated(const std::string& why_no_text, tuning::Configs (*configs)(const Arguments&),
                              const Arguments& a) {
  if (std::string none = why_no_generated_kernels(); !none.empty()) return none;
  if (!why_no_text.empty()) return why_no_text;
  try {
    return configs(a).empty() ? "there is no tiling for such a problem" : "";
  } catch (const InvalidArgument& error) {  // limits of the device are not known
    return error.what();
  }
}

class GeneratedKernel {
 public:
  /// For the current device, to be launched with so much shared memory. Throws CompileError where it has not been
  /// compiled and may not be now, or where a compiler does not take it.
  GeneratedKernel(const std::string& text, std::size_t shared_memory_bytes);

  int resident_blocks(int threads) const { return module_->resident_blocks(threads); }

  /// As launch_following().
  template <class Parameters>
  void launch(const char* name, std::int64_t blocks, int threads, void* stream, const Parameters& parameters) const {
    if (blocks == 0) return;
    check_blocks(name, blocks, threads);
    module_->start(name, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), static_cast<Stream>(stream),
                   parameters);
  }

 private:
  std::shared_ptr<const Module> module_;
};

}  // namespace fusedsc::gpu
