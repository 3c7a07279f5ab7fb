#include "fusedsc/tuning/store/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/store/hash.h"

namespace fusedsc::tuning {
namespace {

namespace fs = std::filesystem;

constexpr const char *kEnding = ".json", *kTemporary = ".tmp";
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  /// Whether that was all right.
  bool close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return descriptor < 0 || ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

std::string why_not() { return std::strerror(errno); }

[[noreturn]] void fail(const fs::path& file, const std::string& why) {
  throw StoreError(file.string() + " cannot be written: " + why);
}

bool write_all(int descriptor, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = ::write(descriptor, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    contents.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// So that the name, too, survives a power failure. Some file systems cannot do it: then it is theirs to know.
void sync_folder(const fs::path& folder) {
  const File file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.descriptor() >= 0) ::fsync(file.descriptor());
}

/// Before any of them is removed.
std::vector<fs::directory_entry> files_in(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator files(folder, error);
  return {begin(files), end(files)};
}

/// Of a store: at a depth of two, whatever else may lie around.
template <class Visit>
void for_each_folder(const fs::path& root, const Visit& visit) {
  for (const fs::path& environment : folders_in(root)) {
    for (const fs::path& role : folders_in(environment)) visit(role);
  }
}

}  // namespace

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.symlink_status(error).type() == fs::file_type::directory) folders.push_back(entry.path());
  }
  return folders;
}

std::size_t clear_folder(const fs::path& folder, std::string_view ending) {
  std::size_t removed = 0;
  for (const fs::directory_entry& file : files_in(folder)) {
    const bool is_whole = file.path().extension() == ending;
    if (!is_whole && file.path().extension() != kTemporary) continue;
    std::error_code error;
    fs::remove(file.path(), error);
    if (error) throw StoreError(file.path().string() + " cannot be removed: " + error.message());
    removed += is_whole ? 1 : 0;
  }
  std::error_code not_empty;  // then it stays
  fs::remove(folder, not_empty);
  return removed;
}

void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != kTemporary || entry.last_write_time(ignored) > old || ignored) continue;
    fs::remove(entry.path(), ignored);
  }
}

std::optional<std::string> contents_of(const fs::path& file) {
  // Not waiting: a pipe of that name would never end.
  const File opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (opened.descriptor() < 0) {
    if (errno == ENOENT) return {};
    throw InvalidArgument("it cannot be opened: " + why_not());
  }
  struct stat facts {};
  check(::fstat(opened.descriptor(), &facts) == 0 && S_ISREG(facts.st_mode), "it is no regular file");
  check(facts.st_size <= kMostBytes, "it has ", facts.st_size, " bytes, which is too much for one");
  std::string contents(static_cast<std::size_t>(facts.st_size), '\0');
  std::size_t size = 0;
  while (size < contents.size()) {
    const ssize_t count = ::read(opened.descriptor(), contents.data() + size, contents.size() - size);
    if (count < 0 && errno == EINTR) continue;
    check(count >= 0, "it cannot be read: ", std::strerror(errno));
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  contents.resize(size);
  return contents;
}

void write_whole(const fs::path& file, std::string_view contents) {
  std::error_code error;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  fs::create_directories(folder, error);
  if (error) fail(file, error.message());
  std::string name = (folder / ".").string();
  (name += file.filename().string()) += ".XXXXXX";
  name += kTemporary;
  File temporary(::mkostemps(name.data(), static_cast<int>(std::strlen(kTemporary)), O_CLOEXEC));
  if (temporary.descriptor() < 0) fail(file, why_not());
  const bool is_written = ::fchmod(temporary.descriptor(), 0644) == 0 && write_all(temporary.descriptor(), contents) &&
                          ::fsync(temporary.descriptor()) == 0 && temporary.close() &&
                          ::rename(name.c_str(), file.c_str()) == 0;
  if (!is_written) {
    const std::string why = why_not();
    ::unlink(name.c_str());
    fail(file, why);
  }
  sync_folder(folder);
}

std::optional<Store> Store::of_user() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text != nullptr ? text : "");
  };
  if (const std::string folder = variable("FUSEDSC_CACHE_DIR"); !folder.empty())
    return Store(fs::path(folder) / "tuning");
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (fs::path(cache).is_absolute()) return Store(fs::path(cache) / "fusedsc" / "tuning");  // as XDG has it
  if (!home.empty()) return Store(fs::path(home) / ".cache" / "fusedsc" / "tuning");
  return {};
}

fs::path Store::file_of(std::string_view environment, std::string_view role, std::string_view problem) const {
  return root_ / environment / role / (hash_of(problem) + kEnding);
}

std::set<std::string> Store::names(std::string_view environment, std::string_view role) const {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root_ / environment / role, error)) {
    if (entry.path().extension() == kEnding) names.insert(entry.path().filename().string());
  }
  return names;
}

std::optional<Entry> Store::read(std::string_view environment, std::string_view role, std::string_view problem) const {
  const std::optional<std::string> contents = contents_of(file_of(environment, role, problem));
  if (!contents) return {};
  Entry entry = entry_of(*contents);
  check(entry.is_of(environment, role, problem), "it is for another problem: ", entry.role, " of ", entry.problem,
        " on ", entry.environment);
  return entry;
}

void Store::write(const Entry& entry) const {
  const fs::path file = file_of(entry.environment, entry.role, entry.problem);
  try {
    write_whole(file, json_of(entry));
  } catch (const StoreError& error) {
    throw StoreError(std::string("a measured choice cannot be stored: ") + error.what() +
                     "; set FUSEDSC_CACHE_DIR to a folder on a disk with room that can be written");
  }
  remove_leftovers(file.parent_path());
}

std::vector<Entry> Store::entries(const Broken& broken) const {
  std::vector<Entry> found;
  for_each_folder(root_, [&](const fs::path& folder) {
    for (const fs::directory_entry& file : files_in(folder)) {
      if (file.path().extension() != kEnding) continue;
      try {
        if (const auto contents = contents_of(file.path())) found.push_back(entry_of(*contents));
      } catch (const InvalidArgument& reason) {
        broken(file.path(), reason.what());
      }
    }
  });
  return found;
}

std::vector<Entry> Store::entries_of(std::string_view environment, std::string_view role) const {
  std::vector<Entry> found;
  for (const std::string& name : names(environment, role)) {
    try {
      const auto contents = contents_of(root_ / environment / role / name);
      if (contents) found.push_back(entry_of(*contents));
    } catch (const InvalidArgument&) {  // said by whoever wants it
    }
  }
  return found;
}

std::size_t Store::clear() const {
  std::size_t entries = 0;
  for_each_folder(root_, [&](const fs::path& folder) { entries += clear_folder(folder, kEnding); });
  for (const fs::path& environment : folders_in(root_)) {
    std::error_code not_empty;  // then it stays
    fs::remove(environment, not_empty);
  }
  return entries;
}

}  // namespace fusedsc::tuning
