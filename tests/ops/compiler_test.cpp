/// Compilers at run time and what is kept of them, where nvrtc is found; and what is said where it is not.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "fusedsc/tuning/compiler/binaries.h"
#include "fusedsc/tuning/compiler/device_headers.h"
#include "fusedsc/tuning/store/store.h"
#include "ops/run_time_compilers.h"

namespace fusedsc::tuning {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArchitecture = "sm_90";

std::string small_text(const std::string& note = "") {
  return "// " + note + R"(
#include "fusedsc/common/gpu/vendor/generated.h"
struct Parameters { float* data; };
FUSEDSC_GENERATED_KERNEL(FUSEDSC_KERNEL(128, 1), Parameters) { parameters.data[0] = 1; }
)";
}

/// In a process of its own, where no library is open yet; returns its exit status, or minus the signal that ended it.
int in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class RunTimeCompiler : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("fusedsc-compiler-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    setenv("FUSEDSC_CACHE_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    unsetenv("FUSEDSC_CACHE_DIR");
  }

  static bool has_nvrtc() {
    const bool has = in_process([] { return runtime_compiler(CompilerKind::nvrtc).why_not().empty() ? 0 : 1; }) == 0;
    return can_compile(CompilerKind::nvrtc, has ? "" : "there is no nvrtc here");
  }
  /// How many texts a process compiles that wants this one; 50: it gets something else.
  static int compiled_by_process(const std::string& text) {
    return in_process([&] {
      const CompilingAllowed compiling;
      const CompiledBinary binary = binary_of(text, kArchitecture);
      if (binary.code.size() < 100 || binary.compiler.find("nvrtc ") != 0) return 50;
      return static_cast<int>(compilations());
    });
  }
  fs::path file_of(const std::string& text) const {
    return Binaries(folder_ / "binaries").file_of(text, kArchitecture);
  }

  fs::path folder_;
};

TEST_F(RunTimeCompiler, ASecondProcessCompilesNothing) {
  if (!has_nvrtc()) GTEST_SKIP() << "there is no nvrtc here";
  EXPECT_EQ(compiled_by_process(small_text()), 1);
  EXPECT_EQ(compiled_by_process(small_text()), 0);
  EXPECT_EQ(compiled_by_process(small_text("another one")), 1);
  EXPECT_EQ(Binaries(folder_ / "binaries").clear(), 2u);
  EXPECT_EQ(compiled_by_process(small_text()), 1);
}

TEST_F(RunTimeCompiler, NothingIsCompiledWhereItIsNotAllowed) {
  EXPECT_EQ(in_process([] {
              try {
                binary_of(small_text(), kArchitecture);
              } catch (const Unsupported& error) {
                const bool says =
                    std::string(error.what()).find("`fusedsc tune --compile` compiles") != std::string::npos;
                return says && compilations() == 0 ? 0 : 1;
              }
              return 2;
            }),
            0);
  if (!has_nvrtc()) return;
  EXPECT_EQ(compiled_by_process(small_text()), 1);
  // What was compiled runs without a compiler.
  EXPECT_EQ(in_process([] {
              setenv("FUSEDSC_COMPILER", "none", 1);
              return binary_of(small_text(), kArchitecture).code.empty() ? 1 : 0;
            }),
            0);
}

TEST_F(RunTimeCompiler, SaysWhatIsMissing) {
  for (const CompilerKind kind : {CompilerKind::nvrtc, CompilerKind::hiprtc}) {
    for (const char* name : {"none", "/nowhere/libnvrtc.so"}) {
      EXPECT_EQ(in_process([&] {
                  setenv("FUSEDSC_COMPILER", name, 1);
                  const std::string why = runtime_compiler(kind).why_not();
                  const CompilingAllowed compiling;
                  try {
                    binary_of(small_text(), kind == CompilerKind::nvrtc ? "sm_90" : "gfx90a");
                  } catch (const Unsupported& error) {
                    return error.what() == why && why.find("to compile kernels at run time") != std::string::npos ? 0
                                                                                                                  : 1;
                  }
                  return 2;
                }),
                0)
          << name;
    }
  }
}

TEST_F(RunTimeCompiler, ManyProcessesAtOnce) {
  if (!has_nvrtc()) GTEST_SKIP() << "there is no nvrtc here";
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const CompilingAllowed compiling;
      _exit(binary_of(small_text(), kArchitecture).code.size() > 100 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(file_of("").parent_path())) {
    static_cast<void>(entry);
    ++files;
  }
  EXPECT_EQ(files, 1u);  // and nothing half-written beside it
  EXPECT_EQ(compiled_by_process(small_text()), 0);
}

/// A process that is killed leaves nothing that others take for a kernel.
TEST_F(RunTimeCompiler, KilledProcesses) {
  if (!has_nvrtc()) GTEST_SKIP() << "there is no nvrtc here";
  for (const int milliseconds : {5, 60, 150, 300}) {
    const pid_t child = fork();
    if (child == 0) {
      const CompilingAllowed compiling;
      for (int i = 0;; ++i) binary_of(small_text(std::to_string(i)), kArchitecture);
    }
    usleep(static_cast<useconds_t>(milliseconds) * 1000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (int i = 0; i < 3; ++i) EXPECT_LE(compiled_by_process(small_text(std::to_string(i))), 1);
  }
}

/// Cut off anywhere, or with another byte anywhere: a miss, and never something else.
TEST_F(RunTimeCompiler, DamagedFiles) {
  const Binaries binaries(folder_ / "binaries");
  const CompiledBinary binary{std::string(1000, '\x7f') + '\0' + "end", "nvrtc 1.0", "Used 3 registers"};
  binaries.write("text", kArchitecture, binary);
  const auto read = [&] { return binaries.read("text", kArchitecture); };
  ASSERT_TRUE(read().has_value());
  EXPECT_EQ(read()->code, binary.code);
  EXPECT_EQ(read()->report, binary.report);
  const fs::path file = binaries.file_of("text", kArchitecture);
  const std::string whole = *contents_of(file);
  const auto write = [&](const std::string& contents) { std::ofstream(file, std::ios::binary) << contents; };
  for (std::size_t i = 0; i < whole.size(); i += 7) {
    write(whole.substr(0, i));
    EXPECT_THROW(read(), InvalidArgument) << "cut off at " << i;
    std::string other = whole;
    other[i] = static_cast<char>(other[i] ^ 1);
    write(other);
    EXPECT_THROW(read(), InvalidArgument) << "another byte at " << i;
  }
  write(whole);
  EXPECT_TRUE(read().has_value());
  EXPECT_FALSE(binaries.read("other text", kArchitecture).has_value());
  if (!has_nvrtc()) return;
  EXPECT_EQ(compiled_by_process(small_text()), 1);
  std::ofstream(file_of(small_text()), std::ios::binary) << "rubbish";
  EXPECT_EQ(compiled_by_process(small_text()), 1);
  EXPECT_EQ(compiled_by_process(small_text()), 0);
}

TEST_F(RunTimeCompiler, WrongTextsAreExplained) {
  if (!has_nvrtc()) GTEST_SKIP() << "there is no nvrtc here";
  EXPECT_EQ(in_process([] {
              try {
                runtime_compiler(CompilerKind::nvrtc).compile("int x = wrong;", kArchitecture);
              } catch (const CompileError& error) {
                return std::string(error.what()).find("\"wrong\" is undefined") != std::string::npos ? 0 : 1;
              }
              return 2;
            }),
            0);
}

TEST(DeviceHeaders, AreAllThatTheyInclude) {
  std::set<std::string> names;
  for (const DeviceHeader& header : device_headers()) EXPECT_TRUE(names.insert(header.name).second) << header.name;
  for (const char* name :
       {"fusedsc/common/gpu/vendor/gpu.h", "fusedsc/forward/pointwise/tiles/pointwise_kernel.h",
        "fusedsc/forward/depthwise/rows/depthwise_kernel.h", "fusedsc/backward/depthwise/rows/depthwise_input_kernel.h",
        "fusedsc/backward/pointwise/tiles/pointwise_weight_kernel.h", "cstdint"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  for (const DeviceHeader& header : device_headers()) {
    const std::string text = header.text;
    EXPECT_EQ(text.find("/home/"), std::string::npos) << header.name;  // no machine's paths
    for (std::size_t at = 0; (at = text.find("#include \"fusedsc/", at)) != std::string::npos; ++at) {
      const std::size_t begin = at + 10, end = text.find('"', begin);
      EXPECT_TRUE(names.contains(text.substr(begin, end - begin))) << text.substr(begin, end - begin);
    }
  }
}

}  // namespace
}  // namespace fusedsc::tuning
