/// Tables that come with fusedsc: what they say is to be taken, can be taken. An H200's was measured with kernels of
/// some time ago; where they changed, python -m benchmarks.fit h200 --table leaves out what is no more.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/model/ranker.h"
#include "fusedsc/tuning/store/store.h"
#include "fusedsc/tuning/store/tables.h"
#include "fusedsc/tuning/trace.h"
#include "gpu/gpu_under_test.h"
#include "host_executor/fitting.h"
#include "ops/conv_bn_act_cases.h"
#include "ops/conv_chain_verify.h"
#include "ops/dsc_block_verify.h"

namespace fusedsc {
namespace {

constexpr const char* kFolder = "../ops/tuning/tables";

std::vector<std::filesystem::path> shipped() {
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(kFolder)) {
    if (file.path().extension() == ".json") files.push_back(file.path());
  }
  return files;
}

TEST(ShippedTable, EveryChoiceFitsAProblemThatOperatorsMeet) {
  ASSERT_FALSE(shipped().empty()) << "run the test in the directory tests/ of the sources, as ctest does";
  for (const std::filesystem::path& file : shipped()) {
    const tuning::Table table = tuning::read_table(file);
    EXPECT_FALSE(table.head.commit.empty()) << file;
    EXPECT_TRUE(std::regex_match(table.head.date, std::regex("20\\d\\d-\\d\\d-\\d\\d"))) << table.head.date;
    EXPECT_FALSE(table.entries.empty()) << file;
    // Named for its device, whose number of multiprocessors is the last word.
    const std::string device = file.stem().string();
    Fitting fitting(std::stoi(device.substr(device.rfind('-') + 1)));
    int wrong = 0;
    for (const tuning::Entry& entry : table.entries) {
      EXPECT_EQ(entry.environment, device);
      const tuning::Chosen chosen{"", entry.best.kernel.c_str(), entry.best.config, ""};
      const std::string why = fitting.why_not(entry.role, entry.problem, chosen.choice());
      EXPECT_EQ(why, "") << chosen.choice() << " for " << entry.role << " of " << entry.problem;
      wrong += !why.empty();
      ASSERT_LT(wrong, 10) << "more are not shown";
    }
  }
}

/// The kernels of which a ranker's text has trees: "name":{"roots":...
std::set<std::string> kernels_in(const std::string& text) {
  std::set<std::string> names;
  for (std::size_t end = text.find("\":{\"roots\""); end != std::string::npos;
       end = text.find("\":{\"roots\"", end + 1)) {
    const std::size_t begin = text.rfind('"', end - 1) + 1;
    names.insert(text.substr(begin, end - begin));
  }
  return names;
}

/// Rankers know kernels by their names, and features by theirs: whoever changes one fits anew, or changes it there,
/// too.
TEST(ShippedRanker, IsOfTheseFeaturesAndKernels) {
  int rankers = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::string(kFolder) + "/rankers")) {
    SCOPED_TRACE(file.path().string());
    const std::string text = *tuning::contents_of(file.path());
    const tuning::Ranker ranker = tuning::Ranker::parsed(text);
    ++rankers;
    std::set<std::string> known;
    for (const tuning::RoleNames& role : tuning::roles()) {
      const auto trees = ranker.of(role.name);
      for (const char* kernel : role.kernels) {
        if (trees != nullptr && trees->kernels.contains(kernel)) known.insert(kernel);
      }
    }
    EXPECT_EQ(kernels_in(text), known);
    EXPECT_FALSE(known.empty());
  }
  EXPECT_GT(rankers, 0);
}

/// What the test of tables can find.
TEST(Fitting, SaysWhatDoesNotFit) {
  Fitting fitting(132);
  const std::string problem =
      "x=float16[64,24,56,56] contiguous align=64 gpu, weight=float16[24,1,3,3] contiguous align=64 gpu, "
      "window{kernel=[3,3], stride=[2,2], dilation=[1,1], padding{left=1, right=1, top=1, bottom=1}}, "
      "y=float16[64,24,28,28] contiguous align=64 gpu";
  const char* const role = "depthwise_conv2d.forward";
  EXPECT_EQ(fitting.why_not(role, problem, "gpu_direct/channels=1 rows=4"), "");
  EXPECT_NE(fitting.why_not(role, problem, "gpu_direct/channels=1 rows=999"), "");
  EXPECT_NE(fitting.why_not(role, problem, "gpu_magic"), "");
  EXPECT_NE(fitting.why_not(role, problem + ", more=3", "gpu_direct/channels=1 rows=4"), "") << "unknown words";
  EXPECT_NE(fitting.why_not("depthwise_conv2d.magic", problem, "gpu_direct/channels=1 rows=4"), "");
  EXPECT_NE(fitting.why_not(role, "x=float16[64,24,56", "gpu_direct/channels=1 rows=4"), "");
  EXPECT_NE(fitting.why_not("magic_conv2d.forward", problem, "gpu_direct/channels=1 rows=4"), "");
}

/// Of a role whose problems have a packed weight and pooling.
TEST(Fitting, KnowsConvolutionsThatSkipZeros) {
  Fitting fitting(132);
  const std::string problem =
      "x=float32[1,128,112,112] channels_last align=64 gpu, weight=float32[128,128,3,3] channels_last align=64 gpu, "
      "packed=float32[147456] align=64 gpu, groups=1, window{kernel=[3,3], stride=[1,1], dilation=[1,1], "
      "padding{left=1, right=1, top=1, bottom=1}}, pooling{size=[1,1], stride=[1,1]}, "
      "y=float32[1,128,112,112] channels_last align=64 gpu";
  const char* const role = "sparse_conv2d.forward";
  EXPECT_EQ(fitting.why_not(role, problem, "gpu_lists/channels=64 columns=8 rows=2 warps=8 splits=1"), "");
  EXPECT_NE(fitting.why_not(role, problem, "gpu_lists/channels=64 columns=8 rows=3 warps=8 splits=1"), "");
  EXPECT_NE(fitting.why_not(role, problem, "gpu_lists"), "");
  EXPECT_NE(fitting.why_not(role, problem, "cpu"), "") << "the map is on a GPU";
}

/// Of blocks, whose problems have parts that may not be given, and lists of such.
TEST(Fitting, KnowsBlocks) {
  using namespace reference;
  use_memory(gpu_memory());
  align_tensors(true);
  const auto why_not = [](const char* role, const auto& arguments, const std::string& choice) {
    return Fitting(132).why_not(role, tuning::problem_text(arguments, 1), choice);
  };
  const Memories memories = Memories::all(Memory::channels_last);
  const ConvBnActCase first{
      .dtype = DataType::float16, .x = {2, 3, 16, 32}, .outputs = 32, .window = centered(3, 2), .memories = memories};
  ConvBnActForward convolution(first);
  ConvBnActBackward gradients(first);
  EXPECT_EQ(why_not("conv_bn_act.forward", convolution.arguments(first), "gpu/channels=32 rows=4"), "");
  EXPECT_NE(why_not("conv_bn_act.forward", convolution.arguments(first), "gpu/channels=24 rows=4"), "");
  EXPECT_EQ(why_not("conv_bn_act.backward", gradients.arguments(first), "gpu/rows=2"), "");

  const DscBlockCase block{.dtype = DataType::float16,
                           .depthwise = {{2, 32, 14, 14}, centered(3)},
                           .outputs = 16,
                           .training = false,
                           .overlap = {},
                           .memories = memories};
  DscBlockForward fused(block);
  EXPECT_EQ(why_not("dsc_block.forward", fused.arguments(block), "composed"), "");
  EXPECT_EQ(why_not("dsc_block.forward", fused.arguments(block), "gpu_hopper/channels=32 columns=16 rows=14"), "");
  DscBlockCase slides = block;
  slides.overlap = 0.5;
  slides.groups = 2;
  DscBlockBackward sliding(slides);
  EXPECT_EQ(why_not("dsc_block.backward", sliding.arguments(slides), "composed"), "");

  for (ConvChainCase chain : conv_chain_edges(DataType::float16)) {
    chain.memories = memories;
    ConvChainTensors tensors(chain);
    ConvChainArguments arguments = tensors.arguments(chain);
    EXPECT_EQ(why_not("conv_chain.forward", arguments, "composed"), "") << testing::PrintToString(chain);
    if (chain.training) EXPECT_NE(why_not("conv_chain.forward", arguments, "inference"), "");
    ConvChainBackward backward(chain);
    EXPECT_EQ(why_not("conv_chain.backward", backward.arguments(chain), "composed"), "");
    if (chain.training || chain.branch_scale) continue;
    for (ConvStage& stage : arguments.stages) stage.raw = {};
    EXPECT_EQ(why_not("conv_chain.forward", arguments, "inference"), "");
  }
  align_tensors(false);
}

}  // namespace
}  // namespace fusedsc
