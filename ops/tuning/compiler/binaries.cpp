#include "fusedsc/tuning/compiler/binaries.h"

#include <atomic>
#include <charconv>
#include <iostream>
#include <mutex>
#include <set>

#include "fusedsc/tuning/compiler/device_headers.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/hash.h"
#include "fusedsc/tuning/store/store.h"

namespace fusedsc::tuning {
namespace {

namespace fs = std::filesystem;

constexpr const char *kEnding = ".bin", *kMagic = "fusedsc-binary-1";

thread_local bool is_allowed_here = false;
std::atomic<bool> compiles_candidates = false;

/// All that a binary depends on but its compiler, which is in the file.
std::string key_of(const std::string& source, const std::string& architecture) {
  std::string key = architecture + '\n' + device_headers_hash() + '\n';
  for (const std::string& option : compiler_options(architecture)) key += option + ' ';
  return key + '\n' + source;
}

/// A line with the sizes and the hash of what follows: key, compiler, report, code.
std::string contents_with(const std::string& key, const CompiledBinary& binary) {
  const std::string all = key + binary.compiler + binary.report + binary.code;
  std::string head = kMagic;
  for (const std::string* part : {&key, &binary.compiler, &binary.report, &binary.code}) {
    head += ' ' + std::to_string(part->size());
  }
  return head + ' ' + hash_of(all) + '\n' + all;
}

CompiledBinary binary_in(std::string_view contents, const std::string& key) {
  const std::size_t end = contents.substr(0, 256).find('\n');
  check(end != std::string_view::npos && contents.starts_with(kMagic), "it is no compiled kernel of this format");
  std::string_view head = contents.substr(std::string_view(kMagic).size(), end - std::string_view(kMagic).size());
  std::string_view rest = contents.substr(end + 1);
  std::size_t sizes[4] = {}, sum = 0;
  for (std::size_t& size : sizes) {
    check(head.starts_with(' '), "its first line is damaged");
    const auto [stop, error] = std::from_chars(head.data() + 1, head.data() + head.size(), size);
    check(error == std::errc() && size <= rest.size(), "it is cut off, or its first line is damaged");
    head.remove_prefix(static_cast<std::size_t>(stop - head.data()));
    sum += size;
  }
  check(sum == rest.size() && head.size() == 17 && head.substr(1) == hash_of(rest), "it is cut off or damaged");
  auto next = [&, i = 0]() mutable {
    const std::string_view part = rest.substr(0, sizes[i]);
    rest.remove_prefix(sizes[i++]);
    return std::string(part);
  };
  check(next() == key, "it is of another kernel with the same hash");
  CompiledBinary binary;
  binary.compiler = next();
  binary.report = next();
  binary.code = next();
  return binary;
}

/// Once for each.
void say_once(const std::string& sentence) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(sentence).second) std::cerr << "fusedsc: " + sentence + '\n';
}

std::optional<CompiledBinary> readable(const Binaries& binaries, const std::string& source,
                                       const std::string& architecture) {
  try {
    return binaries.read(source, architecture);
  } catch (const InvalidArgument& reason) {
    say_once(binaries.file_of(source, architecture).string() + " is ignored: " + reason.what());
    return {};
  }
}

}  // namespace

std::optional<Binaries> Binaries::of_user() {
  const std::optional<Store> store = Store::of_user();
  if (!store) return {};
  return Binaries(store->root().parent_path() / "binaries");
}

fs::path Binaries::file_of(const std::string& source, const std::string& architecture) const {
  return root_ / folder_name(architecture) / (hash_of(key_of(source, architecture)) + kEnding);
}

bool Binaries::has_any(const std::string& architecture) const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root_ / folder_name(architecture), error)) {
    if (entry.path().extension() == kEnding) return true;
  }
  return false;
}

std::optional<CompiledBinary> Binaries::read(const std::string& source, const std::string& architecture) const {
  const std::optional<std::string> contents = contents_of(file_of(source, architecture));
  if (!contents) return {};
  return binary_in(*contents, key_of(source, architecture));
}

void Binaries::write(const std::string& source, const std::string& architecture, const CompiledBinary& binary) const {
  const fs::path file = file_of(source, architecture);
  try {
    write_whole(file, contents_with(key_of(source, architecture), binary));
  } catch (const StoreError& error) {
    throw StoreError(std::string("a compiled kernel cannot be kept: ") + error.what() +
                     "; set FUSEDSC_CACHE_DIR to a folder on a disk with room that can be written");
  }
  remove_leftovers(file.parent_path());
}

std::size_t Binaries::clear() const {
  std::size_t removed = 0;
  for (const fs::path& folder : folders_in(root_)) removed += clear_folder(folder, kEnding);
  return removed;
}

CompilingAllowed::CompilingAllowed(bool is_allowed) : before_(is_allowed_here) {
  is_allowed_here = is_allowed_here || is_allowed;
}
CompilingAllowed::~CompilingAllowed() { is_allowed_here = before_; }
bool compiling_is_allowed() { return is_allowed_here; }

void compile_candidates(bool on) { compiles_candidates.store(on, std::memory_order_relaxed); }
bool candidates_are_compiled() { return compiles_candidates.load(std::memory_order_relaxed); }

CompiledBinary binary_of(const std::string& source, const std::string& architecture) {
  const std::optional<Binaries> binaries = Binaries::of_user();
  std::optional<CompiledBinary> kept = binaries ? readable(*binaries, source, architecture) : std::nullopt;
  if (!compiling_is_allowed()) {
    if (kept) return *kept;
    throw CompileError(
        "this kernel has not been compiled on this machine: `fusedsc tune --compile` compiles, and so does force");
  }
  const RuntimeCompiler& compiler = runtime_compiler(compiler_kind(architecture));
  if (kept && (kept->compiler == compiler.version() || !compiler.why_not().empty())) return *kept;
  CompiledBinary binary = compiler.compile(source, architecture);
  if (binaries) {
    try {
      binaries->write(source, architecture, binary);
    } catch (const StoreError& error) {
      say_once(error.what());
    }
  }
  return binary;
}

std::string why_no_binaries(const std::string& architecture) {
  const std::optional<Binaries> binaries = Binaries::of_user();
  if (binaries && binaries->has_any(architecture)) return {};
  if (compiling_is_allowed()) return runtime_compiler(compiler_kind(architecture)).why_not();
  return "no kernel has been compiled on this machine: `fusedsc tune --compile` compiles";
}

}  // namespace fusedsc::tuning
