#include "fusedsc/tuning/compiler/generated_kernel.h"

#include <mutex>
#include <vector>

namespace fusedsc::gpu {
namespace {

std::string compiled(const std::string& text) {
  if (const auto linked = linked_kernel(text)) return *linked;
  const tuning::CompiledBinary binary = tuning::binary_of(text, architecture());
  if (binary.spills()) throw tuning::CompileError("this kernel has too few registers: it spills");
  return binary.code;
}

}  // namespace

std::string why_no_generated_kernels() {
#ifdef FUSEDSC_HOST_EXECUTOR
  return linked_kernels().empty() ? "no kernel has been linked" : "";
#else
  return tuning::why_no_binaries(architecture());
#endif
}

GeneratedKernel::GeneratedKernel(const std::string& text, std::size_t shared_memory_bytes) {
  struct Loaded {
    int device;
    std::string text;
    std::shared_ptr<const Module> module;
  };
  static std::mutex mutex;
  static std::vector<Loaded> all;  // few: a program has some kernels
#ifdef FUSEDSC_HOST_EXECUTOR
  const int device = wave_size();
#else
  const int device = current_device();
#endif
  const auto find = [&] {
    const std::lock_guard lock(mutex);
    for (const Loaded& each : all) {
      if (each.device == device && each.text == text) module_ = each.module;
    }
    return module_ != nullptr;
  };
  if (find()) return;
  const auto loaded = std::make_shared<const Module>(compiled(text), shared_memory_bytes);
  if (find()) return;  // another thread was faster
  module_ = loaded;
  const std::lock_guard lock(mutex);
  all.push_back({device, text, module_});
}

}  // namespace fusedsc::gpu
