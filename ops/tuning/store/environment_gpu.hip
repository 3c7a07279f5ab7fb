#include "fusedsc/tuning/store/environment_gpu.h"

#include <map>
#include <mutex>

#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/tuning/store/environment.h"

namespace fusedsc::gpu {

std::string environment() {
#ifdef FUSEDSC_HOST_EXECUTOR  // tests change its wave size
  return tuning::environment_of_gpu(device_name(), multiprocessors());
#else
  static std::mutex mutex;
  static std::map<int, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& name = known[current_device()];
  if (name.empty()) name = tuning::environment_of_gpu(device_name(), multiprocessors());
  return name;
#endif
}

int multiprocessor_count() { return multiprocessors(); }

}  // namespace fusedsc::gpu
