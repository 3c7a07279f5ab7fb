#include "fusedsc/tuning/store/tables.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/recorder.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/store.h"

namespace fusedsc::tuning {
namespace {

/// Whether the role is in this build, with such a kernel.
bool has_kernel(const std::vector<RoleNames>& roles, const Entry& entry) {
  return std::any_of(roles.begin(), roles.end(), [&](const RoleNames& role) {
    return role.name == entry.role && std::any_of(role.kernels.begin(), role.kernels.end(),
                                                  [&](const char* kernel) { return kernel == entry.best.kernel; });
  });
}

/// Choices that are to be taken whatever happens must be those of this build.
void check_frozen(const Table& table) {
  check(table.head.frozen_by == library_version(), "it was frozen by fusedsc ", table.head.frozen_by, ", and this is ",
        library_version(), "; freeze it again");
  const std::vector<RoleNames> roles = tuning::roles();
  for (const Entry& entry : table.entries) {
    check(has_kernel(roles, entry), entry.role, " has no kernel ", entry.best.kernel,
          " in this build; freeze it again");
  }
}

}  // namespace

Table read_table(const std::filesystem::path& file) {
  try {
    const std::optional<std::string> contents = contents_of(file);
    check(contents.has_value(), "there is no such file");
    Table table = table_from(*contents);
    if (!table.head.frozen_by.empty()) check_frozen(table);
    return table;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(file.string() + " is no table: " + error.what());
  }
}

std::size_t freeze(const std::filesystem::path& file) {
  std::vector<Entry> entries;
  for (const auto& problem : recorded_problems()) {
    const Taken taken = problem->taken();
    if (taken.choice.empty()) continue;
    const ChoiceWords words = words_of(taken.choice);
    const bool is_measured = std::string_view(taken.why) != "predicted";
    entries.push_back({environment(problem->device),
                       problem->role,
                       problem->text,
                       sources_of(problem->role),
                       library_version(),
                       {std::string(words.kernel), words.parsed_config(), is_measured ? taken.microseconds : 0},
                       {}});
  }
  const std::size_t count = entries.size();
  write_whole(file, table_of(std::move(entries), {.commit = "", .date = "", .frozen_by = library_version()}));
  return count;
}

}  // namespace fusedsc::tuning
