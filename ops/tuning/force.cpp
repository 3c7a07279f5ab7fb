#include "fusedsc/tuning/force.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/version.h"

namespace fusedsc::tuning {
namespace {

constexpr const char* kForce = "force";

struct Role {
  const char* name;
  std::vector<const char*> (*kernels)();
};

std::vector<Role>& registered() {
  static std::vector<Role> roles;
  return roles;
}

std::string listed(const std::vector<const char*>& names) {
  std::string list;
  for (const char* name : names) list += list.empty() ? name : std::string(", ") + name;
  return list.empty() ? "none" : list;
}

/// Throws where there is no such role.
std::vector<const char*> kernels_of(const char* argument, const std::string& role) {
  std::vector<const char*> names;
  for (const RoleNames& one : roles()) {
    if (role == one.name) return one.kernels;
    names.push_back(one.name);
  }
  throw InvalidArgument(std::string(argument) + ": unknown role \"" + role + "\"; there are " + listed(names));
}

struct Table {
  std::mutex mutex;
  std::map<std::string, Forced, std::less<>> forced;
  std::string mistake;  ///< of the environment's: said when an operator is called, as nobody catches it here

  Table() {
    const char* text = std::getenv("FUSEDSC_FORCE");
    std::string_view rest = text != nullptr ? text : "";
    while (!rest.empty()) {
      const std::string entry(rest.substr(0, rest.find(';')));
      rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
      if (entry.empty()) continue;
      const std::size_t equals = entry.find('=');
      try {
        check(equals != std::string::npos, "force: \"", entry, "\" is no role=kernel");
        const std::string role = entry.substr(0, equals);
        forced[role] = read_choice(kForce, role, entry.substr(equals + 1));
      } catch (const InvalidArgument& error) {
        mistake = std::string("FUSEDSC_FORCE: ") + error.what();
      }
    }
    any = !forced.empty() || !mistake.empty();
  }

  static inline std::atomic<bool> any = false;  ///< a call without any force shall not wait for the mutex
};

Table& table() {
  static Table table;
  return table;
}

std::string text_of(const Forced& forced) {
  return forced.config ? forced.kernel + '/' + printed(*forced.config) : forced.kernel;
}

}  // namespace

ChoiceWords words_of(std::string_view choice) {
  const std::size_t slash = choice.find('/');
  if (slash == std::string_view::npos) return {choice, {}};
  return {choice.substr(0, slash), choice.substr(slash + 1)};
}

Forced read_choice(const char* argument, const std::string& role, const std::string& choice) {
  const std::vector<const char*> kernels = kernels_of(argument, role);
  const ChoiceWords words = words_of(choice);
  Forced read{std::string(words.kernel), {}};
  const auto is_kernel = [&](const char* name) { return read.kernel == name; };
  check(std::any_of(kernels.begin(), kernels.end(), is_kernel), argument, ": ", role, " has no kernel \"", read.kernel,
        "\"; there are ", listed(kernels));
  if (words.config) read.config = words.parsed_config();
  return read;
}

std::string force(const std::string& role, const std::string& choice) {
  std::optional<Forced> wanted;
  if (!choice.empty()) wanted = read_choice(kForce, role, choice);
  else kernels_of(kForce, role);
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.forced.find(role);
  std::string before = found != all.forced.end() ? text_of(found->second) : "";
  if (wanted) all.forced[role] = *std::move(wanted);
  else all.forced.erase(role);
  Table::any = !all.forced.empty() || !all.mistake.empty();
  choices_changed();
  return before;
}

std::optional<Forced> forced(const char* role) {
  Table& all = table();
  if (!Table::any) return {};
  const std::lock_guard lock(all.mutex);
  if (!all.mistake.empty()) throw InvalidArgument(all.mistake);
  const auto found = all.forced.find(std::string_view(role));
  if (found == all.forced.end()) return {};
  return found->second;
}

std::vector<RoleNames> roles() {
  std::vector<RoleNames> names;
  for (const Role& role : registered()) names.push_back({role.name, role.kernels()});
  std::sort(names.begin(), names.end(),
            [](const RoleNames& a, const RoleNames& b) { return std::strcmp(a.name, b.name) < 0; });
  return names;
}

RoleRegistration::RoleRegistration(const char* name, std::vector<const char*> (*kernels)()) {
  registered().push_back({name, kernels});
}

}  // namespace fusedsc::tuning
