#include "fusedsc/tuning/compiler/generated_kernel.h"

#include <map>
#include <mutex>
#include <tuple>

namespace fusedsc::gpu {
namespace {

/// What ptxas says of a kernel that keeps registers in memory: nothing that is worth a measurement.
bool spills(const std::string& report) {
  constexpr std::string_view kStores = " bytes spill stores";
  const std::size_t place = report.find(kStores);
  return place != std::string::npos && place > 0 &&
         (report[place - 1] != '0' || (place > 1 && report[place - 2] != ' '));
}

std::string compiled(const std::string& text) {
  if (const auto linked = linked_kernel(text)) return *linked;
  const tuning::CompiledBinary binary = tuning::binary_of(text, architecture());
  if (spills(binary.report)) throw tuning::CompileError("this kernel has too few registers: it spills");
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
  static std::mutex mutex;
  static std::map<std::tuple<int, std::string, std::string>, std::shared_ptr<const Module>> modules;
#ifdef FUSEDSC_HOST_EXECUTOR
  const int device = 0;
#else
  const int device = current_device();
#endif
  const auto key = std::tuple(device, architecture(), text);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = modules.find(key); found != modules.end()) {
      module_ = found->second;
      return;
    }
  }
  module_ = std::make_shared<const Module>(compiled(text), shared_memory_bytes);
  const std::lock_guard lock(mutex);
  module_ = modules.emplace(key, module_).first->second;  // of two threads the first one's stays
}

}  // namespace fusedsc::gpu
