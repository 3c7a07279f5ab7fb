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

/// `damaged`: what is told why it is none, now or when its trees are asked for. Then there is none.
std::optional<Ranker> read(const fs::path& file, const KernelTrees::Damaged& damaged) {
  try {
    const std::optional<std::string> contents = contents_of(file);
    check(contents.has_value(), "there is no such file");
    return Ranker::parsed(*contents, damaged);
  } catch (const InvalidArgument& error) {
    damaged(error.what());
  }
  return std::nullopt;
}

/// The one with the longest name that the environment's begins with.
std::optional<fs::path> file_for(const fs::path& folder, const std::string& environment) {
  std::optional<fs::path> best;
  std::error_code none;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, none)) {
    const std::string name = file.path().stem().string();
    if (file.path().extension() != ".jsonl" || !environment.starts_with(name)) continue;
    if (!best || name.size() > best->stem().string().size()) best = file.path();
  }
  return best;
}

/// FUSEDSC_RANKER, or "".
std::string named_ranker() {
  const char* const variable = std::getenv("FUSEDSC_RANKER");
  return variable != nullptr ? variable : "";
}

std::optional<Ranker> find_ranker(const fs::path& folder, const std::string& environment) {
  const std::string named = named_ranker();
  if (named == "none") return std::nullopt;
  if (!named.empty()) {
    return read(named, [named](const std::string& why) {
      throw InvalidArgument("FUSEDSC_RANKER: " + named + " is no ranker: " + why);
    });
  }
  const std::optional<fs::path> file = file_for(folder, environment);
  if (!file) return std::nullopt;
  return read(*file, [file = *file](const std::string& why) {
    std::cerr << "fusedsc: " + file.string() + " is ignored: it is no ranker: " + why + '\n';
  });
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

fs::path ranker_for(Device device) {
  const std::string named = named_ranker();
  if (!named.empty()) return named == "none" ? fs::path() : fs::path(named);
  const std::string environment = tuning::environment(device);
  const std::lock_guard lock(rankings().mutex);
  return file_for(rankings().folder, environment).value_or(fs::path());
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
