/// Compiled kernels on disk, beside what the tuner has measured: <cache>/binaries/<architecture>/<hash>.bin. Any number
/// of processes may read and write at the same time without locks, as with the tuner's files (store/store.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fusedsc/tuning/compiler/allowed.h"
#include "fusedsc/tuning/compiler/compiler.h"

namespace fusedsc::tuning {

class Binaries {
 public:
  /// $FUSEDSC_CACHE_DIR/binaries, else $XDG_CACHE_HOME/fusedsc/binaries, else ~/.cache/fusedsc/binaries; nothing where
  /// none of these is set.
  static std::optional<Binaries> of_user();

  explicit Binaries(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path file_of(const std::string& source, const std::string& architecture) const;
  /// Whether anything was compiled for it.
  bool has_any(const std::string& architecture) const;

  /// Nothing where there is no file. Throws InvalidArgument, with why, where it is damaged or of something else.
  std::optional<CompiledBinary> read(const std::string& source, const std::string& architecture) const;
  /// Throws StoreError.
  void write(const std::string& source, const std::string& architecture, const CompiledBinary& binary) const;
  /// Removes all files, and nothing else. Returns how many binaries that were.
  std::size_t clear() const;

 private:
  std::filesystem::path root_;
};

/// What there is of a text on disk, or what is compiled, and kept, where that is allowed. Of an older compiler where
/// one may not compile, or of any where there is none. A damaged file is as none, and is said once. Throws CompileError
/// with why there is nothing.
CompiledBinary binary_of(const std::string& source, const std::string& architecture);

/// Empty, or why binary_of() has nothing for any text at all.
std::string why_no_binaries(const std::string& architecture);

}  // namespace fusedsc::tuning
