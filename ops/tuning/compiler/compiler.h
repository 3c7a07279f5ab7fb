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
  std::string report;    ///< what it said: registers, warnings; for AMD GPUs, what the code says of registers, too

  /// Whether the kernel keeps in memory what did not fit its registers: nothing that is worth a measurement.
  bool spills() const;
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
  /// "nvrtc 13.0", "hiprtc 9.0 (clang 15.0.6)": every hiprtc calls itself 9.0.
  const std::string& version() const { return version_; }

  /// Throws CompileError with what the compiler said, or why there is none.
  CompiledBinary compile(const std::string& source, const std::string& architecture) const;

 private:
  struct Outcome {
    bool has_compiled;
    std::string code, log;
  };
  Outcome outcome_of(const std::string& source, const std::vector<std::string>& options, bool to_ptx) const;
  void add_clang_version();

  CompilerKind kind_;
  CompilerFunctions* functions_ = nullptr;  ///< never given back, like the library
  int clang_ = 0;                           ///< major version of hiprtc's; 0: not known
  std::string library_, version_, why_not_;
};

/// Of this process: looked for when somebody asks first.
const RuntimeCompiler& runtime_compiler(CompilerKind kind);

/// What a compiler is told besides the text; hiprtc's by the major version of its clang, else what the newest is told.
std::vector<std::string> compiler_options(const std::string& architecture, int clang = 1000);

/// How many texts this process has compiled.
std::int64_t compilations();

}  // namespace fusedsc::tuning
