/// Compilers at run time: NVIDIA's nvrtc and AMD's hiprtc, opened where they are found. Without them everything runs by
/// the kernels that were compiled with the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {

/// Text that a compiler does not take, or a kernel that it makes with spills; with what it said. What is left out for
/// it is like what does not fit.
class CompileError : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

/// What a compiler made of a text.
struct CompiledBinary {
  std::string code;      ///< for the driver: machine code, or PTX where the compiler does not know the device yet
  std::string compiler;  ///< "nvrtc 13.0"
  std::string report;    ///< what it said: registers, warnings
};

enum class CompilerKind { nvrtc, hiprtc };
/// Of an architecture: "sm_90", "gfx90a".
CompilerKind compiler_kind(std::string_view architecture);

/// Its functions, once its library is open.
struct CompilerFunctions;

class RuntimeCompiler {
 public:
  /// Looks for the library: $FUSEDSC_COMPILER ("none": there shall be none); one that the process has already; the
  /// loader's paths; PyTorch's, or what PyPI's packages brought beside it; the toolkit's ($CUDA_HOME, $ROCM_PATH,
  /// /usr/local/cuda, /opt/rocm).
  explicit RuntimeCompiler(CompilerKind kind);

  /// Empty, or a sentence that says what is missing and what to do about it.
  const std::string& why_not() const { return why_not_; }
  const std::string& library() const { return library_; }  ///< where it was found
  const std::string& version() const { return version_; }  ///< "nvrtc 13.0"

  /// Throws CompileError with what the compiler said, or why there is none.
  CompiledBinary compile(const std::string& source, const std::string& architecture) const;

 private:
  CompilerKind kind_;
  CompilerFunctions* functions_ = nullptr;  ///< never given back, like the library
  std::string library_, version_, why_not_;
};

/// Of this process: looked for when somebody asks first.
const RuntimeCompiler& runtime_compiler(CompilerKind kind);

/// What a compiler is told besides the text.
std::vector<std::string> compiler_options(const std::string& architecture);

/// How many texts this process has compiled.
std::int64_t compilations();

}  // namespace fusedsc::tuning
