#include "fusedsc/tuning/model/ranking.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/store.h"

namespace fusedsc::tuning {
namespace {

namespace fs = std::filesystem;

struct Rankings {
  std::mutex mutex;
  fs::path folder;
  std::map<std::string, std::optional<Ranker>> of_environments;  ///< of those that were asked for
};

Rankings& rankings() {
  static auto* const all = new Rankings;  // never destroyed: threads may still run when the program ends
  return *all;
}

Ranker read(const fs::path& file) {
  try {
    const std::optional<std::string> contents = contents_of(file);
    check(contents.has_value(), "there is no such file");
    return Ranker::parsed(*contents);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(file.string() + " is no ranker: " + error.what());
  }
}

/// The one with the longest name that the environment's begins with.
std::optional<fs::path> file_for(const fs::path& folder, const std::string& environment) {
  std::optional<fs::path> best;
  std::error_code none;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, none)) {
    const std::string name = file.path().stem().string();
    if (file.path().extension() != ".json" || !environment.starts_with(name)) continue;
    if (!best || name.size() > best->stem().string().size()) best = file.path();
  }
  return best;
}

std::optional<Ranker> find_ranker(const fs::path& folder, const std::string& environment) {
  const char* const variable = std::getenv("FUSEDSC_RANKER");
  const std::string named = variable != nullptr ? variable : "";
  if (named == "none") return std::nullopt;
  if (!named.empty()) {
    try {
      return read(named);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(std::string("FUSEDSC_RANKER: ") + error.what());
    }
  }
  const std::optional<fs::path> file = file_for(folder, environment);
  if (!file) return std::nullopt;
  try {
    return read(*file);
  } catch (const InvalidArgument& error) {
    std::cerr << std::string("fusedsc: it is ignored: ") + error.what() + '\n';
    return std::nullopt;
  }
}

}  // namespace

std::shared_ptr<const RoleTrees> ranking_of(const char* role, Device device) {
  const std::string environment = tuning::environment(device);
  Rankings& all = rankings();
  const std::lock_guard lock(all.mutex);
  auto found = all.of_environments.find(environment);
  if (found == all.of_environments.end()) {
    found = all.of_environments.emplace(environment, find_ranker(all.folder, environment)).first;
  }
  return found->second ? found->second->of(role) : nullptr;
}

Machine machine_of(Device device) {
  Machine machine;
  machine.multiprocessors = multiprocessors_of(device);
  return machine;
}

void use_rankers_of(const fs::path& folder) {
  {
    const std::lock_guard lock(rankings().mutex);
    rankings().folder = folder;
  }
  forget_rankers();
}

void forget_rankers() {
  const std::lock_guard lock(rankings().mutex);
  rankings().of_environments.clear();
}

}  // namespace fusedsc::tuning
