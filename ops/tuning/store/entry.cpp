#include "fusedsc/tuning/store/entry.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/store/json_error.h"
#include "kernel_sources.h"  // made by CMake: kKernelSources, kLibraryVersion

namespace fusedsc::tuning {
namespace {

using Json = nlohmann::ordered_json;

/// Counted up when what is written means something else.
constexpr int kFormat = 1;

auto key_of(const Entry& entry) { return std::tie(entry.environment, entry.role, entry.problem); }

Json to_json(const Measured& measured) {
  return {{"kernel", measured.kernel}, {"config", printed(measured.config)}, {"microseconds", measured.microseconds}};
}

Json to_json(const Entry& entry) {
  Json json = {{"format", kFormat},        {"environment", entry.environment}, {"role", entry.role},
               {"problem", entry.problem}, {"sources", entry.sources},         {"version", entry.version}};
  json.update(to_json(entry.best));
  for (const Measured& other : entry.others) json["others"].push_back(to_json(other));
  return json;
}

void check_format(const Json& json) {
  check(json.is_object() && json.contains("format"), "it is not fusedsc's");
  check(json["format"] == kFormat, "its format is ", json["format"].dump(), ", and this version reads format ",
        kFormat);
}

/// Whatever is wrong with it is an exception of the library's or of check().
Measured measured_of(const Json& json) {
  const double microseconds = json.at("microseconds");
  check(std::isfinite(microseconds) && microseconds >= 0, "its time is ", microseconds, " microseconds");
  return {json.at("kernel"), parsed(json.at("config").get_ref<const std::string&>()), microseconds};
}

Entry entry_of(const Json& json) {
  check_format(json);
  Entry entry{json.at("environment"),
              json.at("role"),
              json.at("problem"),
              json.at("sources"),
              json.at("version"),
              measured_of(json),
              {}};
  for (const Json& other : json.value("others", Json::array())) entry.others.push_back(measured_of(other));
  return entry;
}

/// read(document): what JSON's exceptions say, too, as InvalidArgument.
template <class Read>
auto translated(std::string_view text, const Read& read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    throw InvalidArgument(not_whole(error));
  }
}

}  // namespace

std::string sources_of(std::string_view role) {
  const std::string_view operation = role.substr(0, role.find('.'));
  const auto* const found = std::find_if(std::begin(kKernelSources), std::end(kKernelSources),
                                         [&](const auto& family) { return operation.starts_with(family.name); });
  return found != std::end(kKernelSources) ? found->hash : "";
}

std::string library_version() { return kLibraryVersion; }

std::string json_of(const Entry& entry) { return to_json(entry).dump(1) + '\n'; }

Entry entry_of(std::string_view json) {
  return translated(json, [](const Json& document) { return entry_of(document); });
}

std::string table_of(std::vector<Entry> entries, const TableHead& head) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return key_of(a) < key_of(b); });
  Json json = {{"format", kFormat}};
  for (const auto& [name, value] :
       {std::pair("commit", head.commit), std::pair("date", head.date), std::pair("frozen_by", head.frozen_by)}) {
    if (!value.empty()) json[name] = value;
  }
  std::string lines;  // an entry each: so a change of one is seen as such
  const Entry* before = nullptr;
  for (const Entry& entry : entries) {
    if (before == nullptr || key_of(*before) != key_of(entry)) {
      lines += (lines.empty() ? "\n" : ",\n") + to_json(entry).dump();
    }
    before = &entry;
  }
  std::string text = json.dump();
  text.pop_back();  // the brace that closes it
  return text + ", \"entries\": [" + lines + "\n]}\n";
}

Table table_from(std::string_view json) {
  return translated(json, [](const Json& document) {
    check_format(document);
    Table table{{document.value("commit", ""), document.value("date", ""), document.value("frozen_by", "")}, {}};
    for (const Json& one : document.at("entries")) table.entries.push_back(entry_of(one));
    return table;
  });
}

}  // namespace fusedsc::tuning
