#include "fusedsc/tuning/compiler/compiler.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <memory>
#include <regex>

#include "amd_options.h"
#include "fusedsc/tuning/compiler/amd_code.h"
#include "fusedsc/tuning/compiler/device_headers.h"
#include "fusedsc/tuning/compiler/library_paths.h"

namespace fusedsc::tuning {

// Both have the same functions, with the vendor's prefix.
struct CompilerFunctions {
  using Program = void*;
  int (*version)(int* major, int* minor);
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*destroy)(Program*);
  int (*compile)(Program, int count, const char* const* options);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*code_size)(Program, std::size_t*);
  int (*code)(Program, char*);
  int (*ptx_size)(Program, std::size_t*);  ///< nvrtc's
  int (*ptx)(Program, char*);
  int (*architecture_count)(int*);
  int (*architectures)(int*);
};

namespace {

std::atomic<std::int64_t> compiled{0};

/// The functions of an open library; false if one is missing.
bool load_functions(void* library, CompilerKind kind, CompilerFunctions& to) {
  const bool is_nvrtc = kind == CompilerKind::nvrtc;
  const std::string prefix = is_nvrtc ? "nvrtc" : "hiprtc";
  bool has_all = true;
  const auto load = [&](auto& function, const char* name) {
    void* const address = dlsym(library, (prefix + name).c_str());
    has_all = has_all && address != nullptr;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  load(to.version, "Version");
  load(to.create, "CreateProgram");
  load(to.destroy, "DestroyProgram");
  load(to.compile, "CompileProgram");
  load(to.log_size, "GetProgramLogSize");
  load(to.log, "GetProgramLog");
  load(to.code_size, is_nvrtc ? "GetCUBINSize" : "GetCodeSize");
  load(to.code, is_nvrtc ? "GetCUBIN" : "GetCode");
  if (is_nvrtc) {
    load(to.ptx_size, "GetPTXSize");
    load(to.ptx, "GetPTX");
    load(to.architecture_count, "GetNumSupportedArchs");
    load(to.architectures, "GetSupportedArchs");
  }
  return has_all;
}

std::string text_of(CompilerFunctions::Program program, int (*size)(CompilerFunctions::Program, std::size_t*),
                    int (*get)(CompilerFunctions::Program, char*)) {
  std::size_t bytes = 0;
  if (size(program, &bytes) != 0) return {};
  std::string text(bytes, '\0');
  if (get(program, text.data()) != 0) return {};
  return text;
}

/// The newest architecture that nvrtc knows, of those that the device can run: 0 if the device's own.
int older_architecture(const CompilerFunctions& functions, const std::string& architecture) {
  int wanted = 0, count = 0;
  std::from_chars(architecture.data() + 3, architecture.data() + architecture.size(), wanted);
  functions.architecture_count(&count);
  std::vector<int> known(static_cast<std::size_t>(std::max(count, 1)));
  functions.architectures(known.data());
  int best = 0;
  for (const int each : known) {
    if (each == wanted) return 0;
    if (each < wanted) best = std::max(best, each);
  }
  return best;
}

}  // namespace

CompilerKind compiler_kind(std::string_view architecture) {
  check(architecture.starts_with("sm_") || architecture.starts_with("gfx"), "architecture: \"", architecture,
        "\" is none of a GPU, as \"sm_90\" or \"gfx90a\" is");
  return architecture.starts_with("sm_") ? CompilerKind::nvrtc : CompilerKind::hiprtc;
}

std::vector<std::string> compiler_options(const std::string& architecture, int clang) {
  if (compiler_kind(architecture) == CompilerKind::nvrtc) {
    return {"--gpu-architecture=" + architecture,
            "--std=c++20",
            "--device-as-default-execution-space",
            "-DFUSEDSC_GPU",
            "-DFUSEDSC_DEVICE_ONLY",
            "--ptxas-options=-v"};
  }
  std::vector<std::string> options = {"--offload-arch=" + architecture, "-std=c++20", "-O3", "-DFUSEDSC_GPU",
                                      "-DFUSEDSC_DEVICE_ONLY"};
  // Newer ones optimise in a second step, which of all options gets these pairs only.
  const auto add = [&](const char* option) { options.insert(options.end(), {"-mllvm", option}); };
  for (const char* option : kAmdLlvmOptions) add(option);
  if (clang >= kAmdNewerClang) {
    for (const char* option : kAmdNewerLlvmOptions) add(option);
  }
  return options;
}

bool CompiledBinary::spills() const {
  if (const std::optional<AmdKernelResources> resources = amd_kernel_resources(code)) {
    return resources->scratch_bytes > 0;  // some compilers ask for memory that nothing uses; such a one is lost, too
  }
  constexpr std::string_view kStores = " bytes spill stores";  // as ptxas says
  const std::size_t place = report.find(kStores);
  return place != std::string::npos && place > 0 &&
         (report[place - 1] != '0' || (place > 1 && report[place - 2] != ' '));
}

RuntimeCompiler::RuntimeCompiler(CompilerKind kind) : kind_(kind) {
  const bool is_nvrtc = kind == CompilerKind::nvrtc;
  const char* const name = is_nvrtc ? "nvrtc" : "hiprtc";
  const std::vector<std::string> paths = is_nvrtc ? nvrtc_paths() : hiprtc_paths();
  for (const std::string& path : paths) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto functions = std::make_unique<CompilerFunctions>();
    int major = 0, minor = 0;
    if (!load_functions(library, kind, *functions) || functions->version(&major, &minor) != 0) continue;
    version_ = std::string(name) + ' ' + std::to_string(major) + '.' + std::to_string(minor);
    library_ = path_of_function(reinterpret_cast<const void*>(functions->version));
    functions_ = functions.release();
    if (!is_nvrtc) add_clang_version();
    return;
  }
  why_not_ =
      std::string("there is no ") + name + (is_nvrtc ? " (libnvrtc.so)" : " (libhiprtc.so)") +
      " to compile kernels at run time: " +
      (paths.empty() ? "FUSEDSC_COMPILER is \"none\""
       : is_nvrtc    ? "`pip install nvidia-cuda-nvrtc` brings it, or the CUDA toolkit, or FUSEDSC_COMPILER names it"
                     : "ROCm brings it, or FUSEDSC_COMPILER names it");
}

/// Its compiler is asked, as hiprtc's own version says nothing.
void RuntimeCompiler::add_clang_version() {
  const Outcome outcome = outcome_of("#pragma message(__clang_version__)\n", compiler_options("gfx90a", clang_), false);
  std::smatch found;
  if (!std::regex_search(outcome.log, found, std::regex(R"(warning: (([0-9]+)\.[^\n]*?) *(\[-W|\n|$))"))) return;
  version_ += " (clang " + found[1].str() + ')';
  clang_ = std::stoi(found[2]);
}

RuntimeCompiler::Outcome RuntimeCompiler::outcome_of(const std::string& source, const std::vector<std::string>& options,
                                                     bool to_ptx) const {
  std::vector<const char*> names, texts, pointers;
  for (const DeviceHeader& header : device_headers()) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  CompilerFunctions::Program program = nullptr;
  if (functions_->create(&program, source.c_str(), "generated.hip", static_cast<int>(names.size()), texts.data(),
                         names.data()) != 0) {
    return {false, {}, "it cannot begin"};
  }
  const auto destroy = [this](CompilerFunctions::Program* each) { functions_->destroy(each); };
  const std::unique_ptr<CompilerFunctions::Program, decltype(destroy)> owner(&program, destroy);
  pointers.reserve(options.size());
  for (const std::string& option : options) pointers.push_back(option.c_str());
  Outcome outcome{};
  outcome.has_compiled = functions_->compile(program, static_cast<int>(pointers.size()), pointers.data()) == 0;
  outcome.log = text_of(program, functions_->log_size, functions_->log);
  while (!outcome.log.empty() && (outcome.log.back() == '\0' || outcome.log.back() == '\n')) outcome.log.pop_back();
  if (!outcome.has_compiled) return outcome;
  outcome.code = to_ptx ? text_of(program, functions_->ptx_size, functions_->ptx)
                        : text_of(program, functions_->code_size, functions_->code);
  return outcome;
}

CompiledBinary RuntimeCompiler::compile(const std::string& source, const std::string& architecture) const {
  if (functions_ == nullptr) throw CompileError(why_not_);
  const auto fail = [&](const std::string& what) -> void {
    throw CompileError(version_ + " does not compile a generated kernel for " + architecture + ": " + what);
  };
  const int older = kind_ == CompilerKind::nvrtc ? older_architecture(*functions_, architecture) : 0;
  std::vector<std::string> options = compiler_options(architecture, clang_);
  if (older > 0) options[0] = "--gpu-architecture=compute_" + std::to_string(older);
  Outcome outcome = outcome_of(source, options, older > 0);
  if (!outcome.has_compiled) fail(outcome.log.empty() ? "it says nothing about it" : outcome.log);
  compiled.fetch_add(1, std::memory_order_relaxed);
  if (outcome.code.empty()) fail("it made nothing");
  if (const std::optional<AmdKernelResources> resources = amd_kernel_resources(outcome.code)) {
    outcome.log += (outcome.log.empty() ? "" : "\n") + printed(*resources);
  }
  return {std::move(outcome.code), version_, std::move(outcome.log)};
}

const RuntimeCompiler& runtime_compiler(CompilerKind kind) {
  if (kind == CompilerKind::nvrtc) {
    static const RuntimeCompiler nvrtc(CompilerKind::nvrtc);
    return nvrtc;
  }
  static const RuntimeCompiler hiprtc(CompilerKind::hiprtc);
  return hiprtc;
}

std::int64_t compilations() { return compiled.load(std::memory_order_relaxed); }

}  // namespace fusedsc::tuning
