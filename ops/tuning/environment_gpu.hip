#include "fusedsc/tuning/environment_gpu.h"

#include <map>
#include <mutex>

#include "fusedsc/common/gpu/gpu.h"
#include "fusedsc/tuning/environment.h"

namespace fusedsc::gpu {
namespace {

#if defined(FUSEDSC_HOST_EXECUTOR)
std::string names_of_device() { return "host executor wave" + std::to_string(wave_size()); }
#elif defined(__HIPCC__) || defined(__HIP__)
std::string names_of_device() {
  hipDeviceProp_t facts{};
  check_vendor(hipGetDeviceProperties(&facts, current_device()), "gpu: asking for its name");
  return std::string(facts.name) + ' ' + facts.gcnArchName;
}
#else
std::string names_of_device() {
  cudaDeviceProp facts{};
  check_vendor(cudaGetDeviceProperties(&facts, current_device()), "gpu: asking for its name");
  return std::string(facts.name) + " sm" + std::to_string(facts.major) + std::to_string(facts.minor);
}
#endif

}  // namespace

std::string environment() {
#ifdef FUSEDSC_HOST_EXECUTOR
  return tuning::folder_name(names_of_device() + ' ' + std::to_string(multiprocessors()));
#else
  // Asking takes a millisecond.
  static std::mutex mutex;
  static std::map<int, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& name = known[current_device()];
  if (name.empty()) name = tuning::folder_name(names_of_device() + ' ' + std::to_string(multiprocessors()));
  return name;
#endif
}

}  // namespace fusedsc::gpu
