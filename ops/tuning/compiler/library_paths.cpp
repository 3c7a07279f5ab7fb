#include "fusedsc/tuning/compiler/library_paths.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace fusedsc::tuning {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : "";
}

/// Libraries that the process has, whose names begin so.
std::vector<fs::path> loaded(std::string_view prefix) {
  struct Search {
    std::string_view prefix;
    std::vector<fs::path> found;
  } search{prefix, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& its = *static_cast<Search*>(data);
        const fs::path path(info->dlpi_name != nullptr ? info->dlpi_name : "");
        if (path.filename().string().starts_with(its.prefix)) its.found.push_back(path);
        return 0;
      },
      &search);
  return search.found;
}

/// site-packages, as PyTorch's libraries and this one lie in <site-packages>/<package>/[lib/].
std::vector<fs::path> site_packages() {
  std::vector<fs::path> folders;
  for (const fs::path& torch : loaded("libtorch_cpu.so")) {
    folders.push_back(torch.parent_path().parent_path().parent_path());
  }
  const fs::path own = path_of_function(reinterpret_cast<const void*>(&nvrtc_paths));
  if (own.has_parent_path()) folders.push_back(own.parent_path().parent_path());
  return folders;
}

std::vector<std::string> chosen_or(std::vector<std::string> (*paths)()) {
  const std::string chosen = variable("FUSEDSC_COMPILER");
  if (chosen == "none") return {};
  return chosen.empty() ? paths() : std::vector{chosen};
}

std::vector<std::string> all_nvrtc_paths() {
  std::vector<std::string> paths;
  const char* const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
  for (const char* name : names) {
    for (const fs::path& path : loaded(name)) paths.push_back(path.string());
  }
  for (const char* name : names) paths.emplace_back(name);
  for (const fs::path& site : site_packages()) {
    paths.push_back((site / "nvidia/cu13/lib/libnvrtc.so.13").string());
    paths.push_back((site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12").string());
  }
  for (const std::string& home : {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (home.empty()) continue;
    for (const char* folder : {"lib64", "lib", "targets/x86_64-linux/lib"}) {
      for (const char* name : names) paths.push_back((fs::path(home) / folder / name).string());
    }
  }
  return paths;
}

std::vector<std::string> all_hiprtc_paths() {
  std::vector<std::string> paths;
  const char* const names[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"};
  for (const char* name : {"libhiprtc.so", "libamdhip64.so"}) {  // older ones have it in the latter
    for (const fs::path& path : loaded(name)) paths.push_back(path.string());
  }
  for (const char* name : names) paths.emplace_back(name);
  for (const char* name : {"libamdhip64.so.5", "libamdhip64.so"}) paths.emplace_back(name);
  for (const fs::path& site : site_packages()) {
    for (const char* folder : {"torch/lib", "_rocm_sdk_core/lib"}) paths.push_back((site / folder / names[3]).string());
  }
  for (const std::string& home : {variable("ROCM_PATH"), variable("ROCM_HOME"), std::string("/opt/rocm")}) {
    if (!home.empty()) paths.push_back((fs::path(home) / "lib" / names[3]).string());
  }
  return paths;
}

}  // namespace

std::vector<std::string> nvrtc_paths() { return chosen_or(all_nvrtc_paths); }
std::vector<std::string> hiprtc_paths() { return chosen_or(all_hiprtc_paths); }

std::string path_of_function(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace fusedsc::tuning
