#include "fusedsc/tuning/choices.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/compiler/allowed.h"
#include "fusedsc/tuning/model/ranking.h"
#include "fusedsc/tuning/nearest.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/store.h"
#include "fusedsc/tuning/store/tables.h"
#include "fusedsc/tuning/version.h"

namespace fusedsc::tuning {
namespace {

namespace fs = std::filesystem;

constexpr const char *kNearest = "nearest", *kPinned = "pinned";

/// An entry, and where it is from.
struct Found {
  Entry entry;
  const char* why;
  fs::path file;
};

/// A table that the user has named.
struct Named {
  fs::path file;
  Table table;

  bool is_frozen() const { return !table.head.frozen_by.empty(); }
};

/// What is known of a role on a device.
struct Shelf {
  std::set<std::string> files;                        ///< that the user's store has, by name
  std::map<std::string, Entry, std::less<>> table;    ///< by problem
  std::map<std::string, std::optional<Known>> known;  ///< by problem, of those looked up
  std::map<std::string, Entry> adopted;               ///< by problem
  std::optional<Nearest> nearest;                     ///< all that there is, once it is asked for

  void adopt(const Entry& entry) {
    adopted.insert_or_assign(entry.problem, entry);
    if (nearest) nearest->add(entry);
    known[entry.problem] = Known{entry.best.kernel, entry.best.config, entry.best.microseconds, "tuned"};
    // What others than itself stood in for may now have a nearer one.
    std::erase_if(known, [](const auto& one) { return !one.second || one.second->why == std::string_view(kNearest); });
  }
};

struct Choices {
  std::mutex mutex;
  bool is_read = false;  ///< the environment
  bool is_frozen = false;
  bool has_no_table = false;  ///< FUSEDSC_TABLE=none
  std::optional<Store> store;
  std::optional<Named> given;                                   ///< FUSEDSC_TABLE
  std::optional<Named> pinned;                                  ///< by pin(): it outlives what is forgotten
  fs::path shipped_tables;                                      ///< the folder
  std::map<std::string, std::map<std::string, Shelf>> shelves;  ///< by environment and role
  std::set<std::string> said;

  /// Under the lock, as are all others.
  void read_environment() {
    if (is_read) return;
    const char *tune = std::getenv("FUSEDSC_TUNE"), *table_file = std::getenv("FUSEDSC_TABLE");
    const std::string_view value = tune != nullptr ? tune : "";
    check(value.empty() || value == "0" || value == "1", "FUSEDSC_TUNE: it is \"", value,
          "\"; it must be 0, which freezes what is chosen, or 1, or not set");
    is_frozen = value == "0";
    store = Store::of_user();
    given.reset();
    const fs::path file = table_file != nullptr ? table_file : "";
    has_no_table = file == "none";
    if (!file.empty() && !has_no_table) {
      try {
        given = Named{file, read_table(file)};
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(std::string("FUSEDSC_TABLE: ") + error.what());
      }
    }
    is_read = true;
  }

  /// Null: the table that came with fusedsc counts, if there is one for the device.
  const Named* named() const { return pinned ? &*pinned : given ? &*given : nullptr; }
  /// Null: choices are not pinned.
  const Named* pinning() const { return named() != nullptr && named()->is_frozen() ? named() : nullptr; }
  /// Empty: there is none.
  fs::path table_file(const std::string& environment) const {
    if (named() != nullptr) return named()->file;
    return has_no_table || shipped_tables.empty() ? fs::path() : shipped_tables / (environment + ".json");
  }

  void say(const fs::path& file, const std::string& why) {
    if (said.insert(file.string() + why).second) {
      std::cerr << "fusedsc: " + file.string() + " is ignored: " + why + '\n';
    }
  }

  /// Of the table that counts, if there is one.
  std::vector<Entry> table_entries(const std::string& environment) {
    if (named() != nullptr) return named()->table.entries;
    const fs::path file = table_file(environment);
    try {
      if (const auto contents = file.empty() ? std::nullopt : contents_of(file)) {
        std::vector<Entry> entries = table_from(*contents).entries;
        // It is of the same release as the kernels, whatever was changed in their sources since they were measured.
        for (Entry& entry : entries) entry.sources = sources_of(entry.role);
        return entries;
      }
    } catch (const InvalidArgument& error) {
      say(file, error.what());
    }
    return {};
  }

  std::map<std::string, Shelf>& shelves_of(const std::string& environment) {
    read_environment();
    const auto [found, is_new] = shelves.try_emplace(environment);
    if (!is_new) return found->second;
    for (Entry& entry : table_entries(environment)) {
      if (entry.environment != environment) continue;
      std::string problem = entry.problem;
      found->second[entry.role].table.emplace(std::move(problem), std::move(entry));
    }
    if (named() != nullptr && found->second.empty()) {
      say(named()->file, "it has no choice for this device, " + environment);
    }
    for (auto& [role, shelf] : found->second) list_files(environment, role, shelf);
    return found->second;
  }

  void list_files(const std::string& environment, const std::string& role, Shelf& shelf) const {
    if (!is_frozen && store && pinning() == nullptr) shelf.files = store->names(environment, role);
  }

  Shelf& shelf_of(const std::string& environment, const std::string& role) {
    auto& of_environment = shelves_of(environment);
    const auto [found, is_new] = of_environment.try_emplace(role);
    if (is_new) list_files(environment, role, found->second);
    return found->second;
  }

  /// What is stored for the problem, the user's first.
  std::vector<Found> stored(const Shelf& shelf, const std::string& environment, const std::string& role,
                            const std::string& problem) {
    std::vector<Found> found;
    if (store && !shelf.files.empty()) {
      const fs::path file = store->file_of(environment, role, problem);
      if (shelf.files.contains(file.filename().string())) {
        try {
          if (auto entry = store->read(environment, role, problem)) found.push_back({*std::move(entry), "tuned", file});
        } catch (const InvalidArgument& error) {
          say(file, error.what());
        }
      }
    }
    const auto in_table = shelf.table.find(problem);
    if (in_table != shelf.table.end()) {
      found.push_back({in_table->second, pinning() != nullptr ? kPinned : "table", table_file(environment)});
    }
    return found;
  }

  /// Those of other batches that may stand in; of the same batch this process's come first, then the user's.
  std::vector<Entry> nearby(Shelf& shelf, const std::string& environment, const std::string& role,
                            const std::string& problem) const {
    if (!shelf.nearest) {
      shelf.nearest.emplace();
      for (const auto& [text, entry] : shelf.table) shelf.nearest->add(entry);
      if (store && !shelf.files.empty()) {
        for (Entry& entry : store->entries_of(environment, role)) shelf.nearest->add(std::move(entry));
      }
      for (const auto& [text, entry] : shelf.adopted) shelf.nearest->add(entry);
    }
    std::vector<Entry> found;
    for (const Entry* entry : shelf.nearest->of(problem)) found.push_back(*entry);
    return found;
  }
};

Choices& choices() {
  static auto* const all = new Choices;  // never destroyed: threads may still run when the program ends
  return *all;
}

}  // namespace

bool knows_choices(const char* role, Device device) {
  const std::string environment = tuning::environment(device);
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  const Shelf& shelf = all.shelf_of(environment, role);
  return !shelf.files.empty() || !shelf.table.empty() || !shelf.known.empty();
}

std::optional<Known> known_choice(const char* role, Device device, const std::string& problem, const Fits& fits) {
  const std::string environment = tuning::environment(device);
  Choices& all = choices();
  std::vector<Found> found;
  bool is_pinned = false, is_shipped = false;
  const std::uint64_t version = choices_version();
  {
    const std::lock_guard lock(all.mutex);
    const Shelf& shelf = all.shelf_of(environment, role);
    if (const auto known = shelf.known.find(problem); known != shelf.known.end()) return known->second;
    found = all.stored(shelf, environment, role, problem);
    is_pinned = all.pinning() != nullptr;
    is_shipped = all.named() == nullptr;
  }
  // Without the lock: whether it fits is found by planning, which may ask about another role. What is pinned is
  // compiled where it must be, as what is forced.
  const CompilingAllowed compiling(is_pinned || compiling_is_allowed());
  std::optional<Known> known;
  std::vector<std::pair<fs::path, std::string>> unusable;
  for (const Found& one : found) {
    const Measured& best = one.entry.best;
    const bool is_of_table = one.why != std::string_view("tuned");
    if (one.entry.sources != sources_of(role) && !is_pinned) {
      // Once for all of them: after an update there may be hundreds.
      unusable.emplace_back(is_of_table ? one.file : one.file.parent_path(),
                            "it was measured with other kernels than this build has; tune again");
    } else if (!fits(best.kernel, best.config)) {
      const std::string why = "there is no kernel " + best.kernel + " that fits its problem with the config \"" +
                              printed(best.config) + "\"";
      check(!is_pinned, one.file.string(), ": ", why, "; freeze it again: ", role, " of ", problem);
      if (!is_of_table || !is_shipped) unusable.emplace_back(one.file, why);  // else nobody here can help it
    } else {
      known = Known{best.kernel, best.config, best.microseconds, one.why};
      break;
    }
  }
  // All files of the role are read for these: only where they are wanted. They are no promise to this problem, so that
  // nothing is said of those that do not fit; and their times are not its own.
  if (!known && !is_pinned) {
    std::vector<Entry> near;
    {
      const std::lock_guard lock(all.mutex);
      near = all.nearby(all.shelf_of(environment, role), environment, role, problem);
    }
    for (const Entry& entry : near) {
      if (entry.sources != sources_of(role) || !fits(entry.best.kernel, entry.best.config)) continue;
      known = Known{entry.best.kernel, entry.best.config, 0, kNearest};
      break;
    }
  }
  const std::lock_guard lock(all.mutex);
  for (const auto& [file, why] : unusable) all.say(file, why);
  if (version == choices_version()) all.shelf_of(environment, role).known.try_emplace(problem, known);
  return known;
}

void check_not_frozen() {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  all.read_environment();
  check(!all.is_frozen, "tune: FUSEDSC_TUNE=0 freezes what is chosen; unset it to measure");
  if (const Named* pinning = all.pinning()) {
    throw InvalidArgument("tune: " + pinning->file.string() +
                          " pins what is chosen; call fusedsc.tuning.pin(None), or unset FUSEDSC_TABLE, to measure");
  }
}

std::size_t pin(const fs::path& file) {
  std::optional<Named> pinned;
  if (!file.empty()) {
    pinned = Named{file, read_table(file)};
    check(pinned->is_frozen(), "pin: ", file.string(),
          " has measured choices, which were not frozen; FUSEDSC_TABLE=file makes them count, and "
          "fusedsc.tune(..., freeze=file) writes what can be pinned");
  }
  const std::size_t count = pinned ? pinned->table.entries.size() : 0;
  {
    const std::lock_guard lock(choices().mutex);
    choices().pinned = std::move(pinned);
  }
  forget_choices();
  return count;
}

void adopt(const Entry& entry, bool stores) {
  check_not_frozen();
  Choices& all = choices();
  std::optional<Store> store;
  {
    const std::lock_guard lock(all.mutex);
    Shelf& shelf = all.shelf_of(entry.environment, entry.role);
    shelf.adopt(entry);
    store = all.store;
  }
  choices_changed();
  if (!stores) return;
  if (!store) {
    throw StoreError(
        "there is no folder to store measured choices in: neither FUSEDSC_CACHE_DIR nor HOME is set; set "
        "one of them");
  }
  store->write(entry);
}

void forget_choices() {
  Choices& all = choices();
  {
    const std::lock_guard lock(all.mutex);
    all.shelves.clear();
    all.said.clear();
    all.is_read = false;
  }
  forget_rankers();
  choices_changed();
}

void use_tables_of(const fs::path& folder) {
  {
    const std::lock_guard lock(choices().mutex);
    choices().shipped_tables = folder;
  }
  use_rankers_of(folder / "rankers");
  forget_choices();
}

fs::path table_for(Device device) {
  const std::string environment = tuning::environment(device);
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  all.read_environment();
  const fs::path file = all.table_file(environment);
  std::error_code error;
  return fs::is_regular_file(file, error) ? file : fs::path();
}

}  // namespace fusedsc::tuning
