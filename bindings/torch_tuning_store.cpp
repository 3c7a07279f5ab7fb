/// Files of choices, for Python: the user's store, tables, frozen choices.
#include <torch/library.h>

#include <iostream>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/choices.h"
#include "fusedsc/tuning/compiler/binaries.h"
#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/model/ranking.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/store.h"
#include "fusedsc/tuning/store/tables.h"
#include "fusedsc/tuning/trace.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using Strings = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

/// How many were written, and why they could not be, or "".
using Written = std::tuple<std::int64_t, std::string>;

template <class Write>
Written written(const Write& write) {
  try {
    return {static_cast<std::int64_t>(write()), ""};
  } catch (const tuning::StoreError& error) {
    return {0, error.what()};
  }
}

// --------------------------------------------------------------------------------------------------------------- store

tuning::Store store() {
  const auto store = tuning::Store::of_user();
  check(store.has_value(), "there is no folder of measured choices: neither FUSEDSC_CACHE_DIR nor HOME is set");
  return *store;
}

void say_broken(const std::filesystem::path& file, const std::string& why) {
  std::cerr << "fusedsc: " + file.string() + " is ignored: " + why + '\n';
}

/// What else is kept of kernels' times ends with the same hash.
std::string sources_of(const std::string& role) { return tuning::sources_of(role); }

bool is_stale(const tuning::Entry& entry) { return entry.sources != tuning::sources_of(entry.role); }

/// A row for each entry: environment, role, problem, choice, microseconds, whether it is of other kernels than these.
std::tuple<Strings, Strings, Strings, Strings, std::vector<double>, Numbers> stored_choices() {
  std::tuple<Strings, Strings, Strings, Strings, std::vector<double>, Numbers> columns;
  auto& [environments, roles, problems, choices, microseconds, stale] = columns;
  for (const tuning::Entry& entry : store().entries(say_broken)) {
    environments.push_back(entry.environment);
    roles.push_back(entry.role);
    problems.push_back(entry.problem);
    choices.push_back(tuning::Chosen{"", entry.best.kernel.c_str(), entry.best.config, ""}.choice());
    microseconds.push_back(entry.best.microseconds);
    stale.push_back(is_stale(entry) ? 1 : 0);
  }
  return columns;
}

/// What was measured with other kernels is left out.
Written export_choices(std::string file) {
  std::vector<tuning::Entry> entries = store().entries(say_broken);
  std::erase_if(entries, is_stale);
  return written([&] {
    tuning::write_whole(file, tuning::table_of(entries));
    return entries.size();
  });
}

/// Into the user's store, what is faster than what is there. How many of how many; and why not all, or "".
std::tuple<std::int64_t, std::int64_t, std::string> merge_choices(Strings files) {
  std::vector<tuning::Entry> entries;
  for (const std::string& file : files) {
    tuning::Table table = tuning::read_table(file);
    check(table.head.frozen_by.empty(), file,
          " has frozen choices, of which not all were measured; fusedsc.tuning.pin ", "makes them count");
    for (tuning::Entry& entry : table.entries) entries.push_back(std::move(entry));
  }
  const tuning::Store mine = store();
  std::int64_t taken = 0;
  std::string why;
  for (const tuning::Entry& entry : entries) {
    std::optional<tuning::Entry> before;
    try {
      before = mine.read(entry.environment, entry.role, entry.problem);
    } catch (const InvalidArgument&) {  // not worth keeping
    }
    const bool is_better = !before || is_stale(*before) || before->best.microseconds > entry.best.microseconds;
    if (is_stale(entry) || !is_better) continue;
    try {
      mine.write(entry);
    } catch (const tuning::StoreError& error) {
      why = error.what();
      break;
    }
    ++taken;
  }
  tuning::forget_choices();
  return {taken, static_cast<std::int64_t>(entries.size()), why};
}

/// How many entries there were; and why not all are gone, or "".
Written clear_choices() {
  return written([] {
    const std::size_t count = store().clear();
    tuning::forget_choices();
    if (const auto binaries = tuning::Binaries::of_user()) binaries->clear();
    return count;
  });
}

std::string store_path() { return store().root().string(); }

// -------------------------------------------------------------------------------------------------------------- tables

void use_tables_of(std::string folder) { tuning::use_tables_of(folder); }

std::int64_t pin(std::string file) { return static_cast<std::int64_t>(tuning::pin(file)); }

Written freeze(std::string file) {
  return written([&] { return tuning::freeze(file); });
}

/// What the current CPU or GPU is called, and the files that count there, or "".
std::tuple<std::string, std::string, std::string> tables_for(bool gpu) {
  const Device device = gpu ? Device::gpu : Device::cpu;
  return {tuning::environment(device), tuning::table_for(device).string(), tuning::ranker_for(device).string()};
}

/// The table of a GPU, for a release: the fastest choice of each problem, measured at a commit of that day. Returns the
/// file, <folder>/<environment>.json.
std::tuple<std::string, std::string> write_table(std::string folder, std::string gpu, std::int64_t multiprocessors,
                                                 Strings roles, Strings problems, Strings choices,
                                                 std::vector<double> microseconds, std::string commit,
                                                 std::string date) {
  check(roles.size() == problems.size() && roles.size() == choices.size() && roles.size() == microseconds.size(),
        "roles: there are ", roles.size(), ", but ", problems.size(), " problems, ", choices.size(), " choices and ",
        microseconds.size(), " times");
  const std::string environment = tuning::environment_of_gpu(gpu, static_cast<int>(multiprocessors));
  std::vector<tuning::Entry> entries;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const tuning::ChoiceWords words = tuning::words_of(choices[i]);
    // Sources: those that were measured may be others. What ships holds for its release.
    entries.push_back({environment,
                       roles[i],
                       problems[i],
                       "",
                       tuning::library_version(),
                       {std::string(words.kernel), words.parsed_config(), microseconds[i]},
                       {}});
  }
  const std::string file = (std::filesystem::path(folder) / (environment + ".json")).string();
  const auto [count, why_not] = written([&] {
    tuning::write_whole(file, tuning::table_of(entries, {.commit = commit, .date = date, .frozen_by = ""}));
    return entries.size();
  });
  return {file, why_not};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fusedsc, m) {
  m.def("_cache_path() -> str", translated<store_path>);
  m.def("_cache_choices() -> (str[] environment, str[] role, str[] problem, str[] choice, float[] us, int[] stale)",
        translated<stored_choices>);
  m.def("_cache_export(str file) -> (int count, str why_not)", translated<export_choices>);
  m.def("_cache_merge(str[] files) -> (int taken, int given, str why_not)", translated<merge_choices>);
  m.def("_cache_clear() -> (int count, str why_not)", translated<clear_choices>);
  m.def("_cache_forget() -> ()", translated<tuning::forget_choices>);

  m.def("_sources_of(str role) -> str", translated<sources_of>);

  m.def("_use_tables_of(str folder) -> ()", translated<use_tables_of>);
  m.def("_tables_for(bool gpu) -> (str device, str table, str ranker)", translated<tables_for>);
  // "" ends it.
  m.def("_tables_pin(str file) -> int", translated<pin>);
  m.def("_tables_freeze(str file) -> (int count, str why_not)", translated<freeze>);
  m.def(
      "_tables_write(str folder, str gpu, int multiprocessors, str[] roles, str[] problems, str[] choices, float[] us, "
      "str commit, str date) -> (str file, str why_not)",
      translated<write_table>);
}

}  // namespace fusedsc::aten
