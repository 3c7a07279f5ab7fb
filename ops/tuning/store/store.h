/// Measured choices on disk: a file for each, <root>/<environment>/<role>/<hash of the problem>.json. Any number of
/// processes may read and write at the same time without locks: a file is written under another name and renamed when
/// it is whole, so that whoever comes last has written it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/store/entry.h"

namespace fusedsc::tuning {

/// A file that cannot be written or read: which, why, and what to do about it.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Store {
 public:
  /// $FUSEDSC_CACHE_DIR/tuning, else $XDG_CACHE_HOME/fusedsc/tuning, else ~/.cache/fusedsc/tuning; nothing where none
  /// of these is set.
  static std::optional<Store> of_user();

  explicit Store(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path file_of(std::string_view environment, std::string_view role, std::string_view problem) const;

  /// The names of the files that there are for a role.
  std::set<std::string> names(std::string_view environment, std::string_view role) const;
  /// Nothing where there is no file. Throws InvalidArgument, with why, where it is not one for that problem.
  std::optional<Entry> read(std::string_view environment, std::string_view role, std::string_view problem) const;
  /// Throws StoreError.
  void write(const Entry& entry) const;

  /// All that can be read; `broken(file, why)` for each file that cannot.
  using Broken = std::function<void(const std::filesystem::path& file, const std::string& why)>;
  std::vector<Entry> entries(const Broken& broken) const;
  /// Of a role on a device. What cannot be read is left out: read() says why, where it is asked for.
  std::vector<Entry> entries_of(std::string_view environment, std::string_view role) const;
  /// Removes all files of a store, and nothing else. Returns how many entries that were.
  std::size_t clear() const;

 private:
  std::filesystem::path root_;
};

/// The whole of a regular file; nothing where there is none. Throws InvalidArgument, with why, where it cannot be read.
std::optional<std::string> contents_of(const std::filesystem::path& file);
/// Writes another file beside it, sees to it that it is on the disk, and gives it that file's name. Throws StoreError.
void write_whole(const std::filesystem::path& file, std::string_view contents);
/// Folders there; not what links lead to.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder);
/// Removes files whose names end so, and what is half-written, from a folder, and the folder if it is empty then.
/// Returns how many it were, but for the half-written ones. Throws StoreError.
std::size_t clear_folder(const std::filesystem::path& folder, std::string_view ending);
/// What killed processes have left there, long enough ago that none is still at it.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace fusedsc::tuning
