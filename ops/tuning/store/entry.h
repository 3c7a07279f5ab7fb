/// A measured choice as it is stored: one in a JSON file of its own, or many in a table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/config.h"

namespace fusedsc::tuning {

struct Measured {
  std::string kernel;
  Config config;
  double microseconds = 0;
};

/// The fastest of those measured for a problem. It holds where everything up to `sources` is the same.
struct Entry {
  std::string environment;  ///< environment()
  std::string role;         ///< "depthwise_conv2d.forward"
  std::string problem;      ///< problem_text()
  std::string sources;      ///< sources_of(role): it may have become another kernel since
  std::string version;      ///< of fusedsc, for people
  Measured best;
  std::vector<Measured> others;  ///< the next ones, the fastest first

  bool is_of(std::string_view environment_, std::string_view role_, std::string_view problem_) const {
    return environment == environment_ && role == role_ && problem == problem_;
  }
};

/// A hash of the sources of the role's operator in this build.
std::string sources_of(std::string_view role);
/// Of fusedsc: what new entries have.
std::string library_version();

std::string json_of(const Entry& entry);
/// Throws InvalidArgument, with why, if it is none: cut off, of another format, or something else altogether.
Entry entry_of(std::string_view json);

/// Where a table is from. What does not apply is empty.
struct TableHead {
  std::string commit;     ///< of a table that was made from rows: on which these were measured,
  std::string date;       ///< and the day of that commit
  std::string frozen_by;  ///< of choices that were frozen (choices.h): the version of fusedsc
};

struct Table {
  TableHead head;
  std::vector<Entry> entries;
};

/// A table: one JSON document, sorted, so that two of them can be compared line by line. Of entries for the same
/// problem the first stays.
std::string table_of(std::vector<Entry> entries, const TableHead& head = {});
/// Throws InvalidArgument, with why, if it is none.
Table table_from(std::string_view json);

}  // namespace fusedsc::tuning
