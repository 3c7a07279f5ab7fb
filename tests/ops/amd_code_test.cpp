/// What is read of AMD's machine code: of code written by hand here, damaged anywhere, and of what hiprtc makes where
/// it is found.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

#include "fusedsc/tuning/compiler/amd_code.h"
#include "fusedsc/tuning/compiler/compiler.h"
#include "ops/run_time_compilers.h"

namespace fusedsc::tuning {
namespace {

/// MessagePack, as LLVM writes it.
std::string text(const std::string& value) {
  if (value.size() < 32) return static_cast<char>(0xa0 + value.size()) + value;
  return std::string("\xd9") + static_cast<char>(value.size()) + value;
}
std::string number(unsigned value) {
  if (value < 128) return {static_cast<char>(value)};
  if (value < 256) return {'\xcc', static_cast<char>(value)};
  return {'\xcd', static_cast<char>(value >> 8), static_cast<char>(value & 255)};
}
std::string map(std::size_t count) { return {static_cast<char>(0x80 + count)}; }
std::string array(std::size_t count) { return {static_cast<char>(0x90 + count)}; }

std::string metadata(unsigned scratch_bytes) {
  const std::string argument = map(2) + text(".size") + number(8) + text(".value_kind") + text("global_buffer");
  return map(3) + text("amdhsa.version") + array(2) + number(1) + number(2) + text("amdhsa.kernels") + array(1) +
         map(8) + text(".args") + array(1) + argument + text(".agpr_count") + number(16) + text(".name") +
         text("fusedsc_kernel_with_a_name_of_more_than_32_characters") + text(".private_segment_fixed_size") +
         number(scratch_bytes) + text(".sgpr_count") + number(104) + text(".uses_dynamic_stack") + "\xc2" +
         text(".large") + "\xcf" + std::string(8, '\1') + text(".vgpr_count") + number(272) + text("amdhsa.target") +
         text("amdgcn-amd-amdhsa--gfx90a");
}

/// ELF with notes alone: another's first.
std::string code_with(const std::string& description) {
  const auto bytes_of = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto note = [&](const char* name, std::uint32_t type, std::string content) {
    const Elf64_Nhdr head{static_cast<std::uint32_t>(std::strlen(name) + 1), static_cast<std::uint32_t>(content.size()),
                          type};
    std::string padded = std::string(name) + '\0';
    while (padded.size() % 4 != 0) padded += '\0';
    while (content.size() % 4 != 0) content += '\0';
    return bytes_of(head) + padded + content;
  };
  const std::string notes = note("GNU", 32, "other") + note("AMDGPU", 32, description);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phoff = sizeof header;
  header.e_phnum = 2;
  Elf64_Phdr load{}, segment{};
  load.p_type = PT_LOAD;
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof header + 2 * sizeof segment;
  segment.p_filesz = notes.size();
  return bytes_of(header) + bytes_of(load) + bytes_of(segment) + notes;
}

TEST(AmdCode, SaysWhatItsKernelNeeds) {
  const auto resources = amd_kernel_resources(code_with(metadata(232)));
  ASSERT_TRUE(resources.has_value());
  EXPECT_EQ(resources->vgprs, 272);
  EXPECT_EQ(resources->agprs, 16);
  EXPECT_EQ(resources->sgprs, 104);
  EXPECT_EQ(resources->scratch_bytes, 232);
  EXPECT_EQ(printed(*resources), "272 VGPRs, 16 AGPRs, 104 SGPRs, 232 bytes of scratch memory");
  EXPECT_FALSE(amd_kernel_resources(code_with(map(0))).has_value());
  EXPECT_FALSE(amd_kernel_resources(code_with(map(1) + text("amdhsa.kernels") + array(0))).has_value());
  EXPECT_FALSE(amd_kernel_resources("").has_value());
}

/// Nothing is read that is not there (AddressSanitizer sees to that), and nothing hangs.
TEST(AmdCode, Damaged) {
  const std::string whole = code_with(metadata(232));
  const std::size_t kernel_ends = whole.find("amdhsa.target");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto resources = amd_kernel_resources(std::string(whole, 0, size));
    EXPECT_FALSE(resources.has_value() && size < kernel_ends - 1) << size;
  }
  for (std::size_t place = 0; place < whole.size(); ++place) {
    for (const int byte : {0x00, 0x7f, 0x8f, 0x9f, 0xdb, 0xdd, 0xdf, 0xff}) {
      std::string other = whole;
      other[place] = static_cast<char>(byte);
      amd_kernel_resources(other);
    }
  }
}

/// As tune and force ask (generated_kernel.hip).
TEST(AmdCode, KernelsThatSpill) {
  const std::string code = code_with(metadata(0));
  EXPECT_TRUE((CompiledBinary{code_with(metadata(4)), "hiprtc 9.0", ""}.spills()));
  EXPECT_FALSE((CompiledBinary{code, "hiprtc 9.0", ""}.spills()));
  const std::string of_ptxas = "ptxas info: 0 bytes stack frame, ";
  EXPECT_FALSE(
      (CompiledBinary{"cubin", "nvrtc 13.0", of_ptxas + "0 bytes spill stores, 0 bytes spill loads"}.spills()));
  EXPECT_TRUE(
      (CompiledBinary{"cubin", "nvrtc 13.0", of_ptxas + "40 bytes spill stores, 0 bytes spill loads"}.spills()));
}

TEST(AmdCode, OptionsAreThoseOfTheBuild) {
  const auto has = [](const std::vector<std::string>& options, const char* option) {
    for (std::size_t i = 1; i < options.size(); ++i) {
      if (options[i] == option && options[i - 1] == "-mllvm") return true;
    }
    return false;
  };
  for (const int clang : {0, 15, 16, 22}) {
    const std::vector<std::string> options = compiler_options("gfx90a:sramecc+", clang);
    EXPECT_EQ(options[0], "--offload-arch=gfx90a:sramecc+");
    EXPECT_TRUE(has(options, "-inline-threshold=1000000"));
    EXPECT_EQ(has(options, "-disable-lsr"), clang >= 16) << clang;
  }
  EXPECT_FALSE(has(compiler_options("sm_90"), "-inline-threshold=1000000"));
}

TEST(AmdCode, OfHiprtc) {
  const RuntimeCompiler& compiler = runtime_compiler(CompilerKind::hiprtc);
  if (!can_compile(CompilerKind::hiprtc, compiler.why_not())) GTEST_SKIP() << compiler.why_not();
  EXPECT_NE(compiler.version().find(" (clang "), std::string::npos) << compiler.version();
  const std::string begin = R"(
#include "fusedsc/common/gpu/vendor/generated.h"
struct Parameters { float* data; int count; };
FUSEDSC_GENERATED_KERNEL(FUSEDSC_KERNEL(128, 1), Parameters) {)";
  // An array whose places are known only when it runs cannot be registers.
  const std::string spilling = R"(
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = parameters.data[i];
  for (int i = 0; i < parameters.count; ++i) kept[int(parameters.data[i]) & 63] += kept[i & 31];
  for (int i = 0; i < 64; ++i) parameters.data[i] = kept[i];
})";
  for (const char* architecture : {"gfx906", "gfx90a", "gfx1030"}) {
    const CompiledBinary plain = compiler.compile(begin + " parameters.data[0] = 1; }", architecture);
    EXPECT_FALSE(plain.spills()) << plain.report;
    EXPECT_NE(plain.report.find(", 0 bytes of scratch memory"), std::string::npos) << plain.report;
    const CompiledBinary other = compiler.compile(begin + spilling, architecture);
    EXPECT_TRUE(other.spills()) << other.report;
  }
  try {
    compiler.compile("int x = wrong;", "gfx90a");
    FAIL() << "it was compiled";
  } catch (const CompileError& error) {
    EXPECT_NE(std::string(error.what()).find("undeclared identifier 'wrong'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fusedsc::tuning
