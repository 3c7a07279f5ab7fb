#include "fusedsc/tuning/store/environment.h"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>

#include "fusedsc/common/status.h"
#include "fusedsc/runtime/cpu_targets.h"
#ifdef FUSEDSC_GPU
#include "fusedsc/tuning/store/environment_gpu.h"
#endif

namespace fusedsc::tuning {
namespace {

/// x86 has a "model name"; Arm's cores have numbers for who made them and which they are.
std::string cpu_model() {
  std::ifstream facts("/proc/cpuinfo");
  std::string implementer, part;
  for (std::string line; std::getline(facts, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string value = line.substr(colon + 1);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;
  }
  utsname system{};
  ::uname(&system);
  return std::string(system.machine) + ' ' + implementer + ' ' + part;
}

}  // namespace

std::string folder_name(const std::string& names) {
  std::string folder;
  for (const char character : names) {
    const char lower = character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a') : character;
    const bool is_plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (is_plain) folder += lower;
    else if (!folder.empty() && folder.back() != '-') folder += '-';
  }
  while (!folder.empty() && folder.back() == '-') folder.pop_back();
  return folder.empty() ? "unknown" : folder;
}

std::string environment(Device device) {
  if (device == Device::gpu) {
#ifdef FUSEDSC_GPU
    return gpu::environment();
#else
    return "no-gpu";
#endif
  }
  static const std::string model = cpu_model();
  return folder_name(model + ' ' + cpu_targets().front());
}

std::string environment_of_gpu(const std::string& name, int multiprocessors) {
  return folder_name(name + ' ' + std::to_string(multiprocessors));
}

int multiprocessors_of([[maybe_unused]] Device device) {
#ifdef FUSEDSC_GPU
  if (device == Device::gpu) return gpu::multiprocessor_count();
#endif
  return 1;
}

}  // namespace fusedsc::tuning
