/// Problems in words: they say what plans depend on, no more and no less; and the same problems in other memory.
#include "fusedsc/tuning/problem_text.h"

#include <functional>

#include "fusedsc/backward/members.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/fused/members.h"
#include "fusedsc/tuning/views.h"

namespace fusedsc::reference {
namespace {

using tuning::problem_text;
using tuning::ProblemKey;

/// An address that is aligned to `alignment` bytes, and no more.
void* at(std::uintptr_t alignment) { return reinterpret_cast<void*>(4096 + alignment); }

DepthwiseArguments usual() {
  DepthwiseArguments a;
  a.x = {at(0), DataType::float16, {2, 8, 9, 10}, dense_strides({2, 8, 9, 10}, Layout::channels_last), Device::gpu};
  a.weight = {at(0), DataType::float16, {8, 1, 3, 3}, dense_strides({8, 1, 3, 3}, Layout::contiguous), Device::gpu};
  a.window = {.kernel = {3, 3}, .padding = {1, 1, 1, 1}};
  a.prologue = {{at(16), DataType::float32, 8, Device::gpu}, {}, Activation::relu6};
  a.y = {at(32), DataType::float16, {2, 8, 9, 10}, {1440, 1, 160, 16}, Device::gpu};
  return a;
}

TEST(ProblemText, ReadsWell) {
  EXPECT_EQ(problem_text(usual(), 1),
            "x=float16[2,8,9,10] channels_last align=64 gpu, weight=float16[8,1,3,3] contiguous align=64 gpu, "
            "window{kernel=[3,3], stride=[1,1], dilation=[1,1], padding{left=1, right=1, top=1, bottom=1}}, "
            "prologue{scale=float32[8] align=16 gpu, activation=relu6}, "
            "y=float16[2,8,9,10] strides=[1440,1,160,16] align=32 gpu");
  DepthwiseArguments statistics_alone = usual();
  statistics_alone.y.data = nullptr;
  statistics_alone.statistics.mean = statistics_alone.statistics.m2 = {at(4), DataType::float32, 8, Device::gpu};
  const std::string text = problem_text(statistics_alone, 1);
  EXPECT_NE(text.find("statistics{mean=float32[8] align=4 gpu, m2=float32[8] align=4 gpu}, y=float16"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("[1440,1,160,16] not given gpu"), std::string::npos) << text;
}

TEST(ProblemText, ThreadsCountOnACpu) {
  DepthwiseArguments a = usual();
  EXPECT_EQ(problem_text(a, 1), problem_text(a, 2));
  a.x.device = Device::cpu;
  EXPECT_NE(problem_text(a, 1), problem_text(a, 2));
}

TEST(ProblemText, BlocksToo) {
  ConvChainArguments chain;
  chain.stages.resize(2);
  chain.stages[1].bn = BatchNormParameters{};
  chain.stages[1].bn->eps = 1e-5;
  EXPECT_EQ(problem_text(chain, 2),
            "stages_count=2, stages0{kind=1, window{kernel=[1,1], stride=[1,1], dilation=[1,1]}}, stages1{kind=1, "
            "window{kernel=[1,1], stride=[1,1], dilation=[1,1]}, bn_is_given, bn{eps=1e-05}}, training, threads=2");
}

/// Of any two problems: the same words of the key, the same text.
TEST(ProblemText, SaysWhatTheKeySays) {
  const ChannelVector vector(at(0), DataType::float32, 8, Device::gpu);
  const std::function<void(PointwiseBackwardArguments&)> changes[] = {
      [](auto&) {},
      [](auto& a) { a.x.data = at(16); },
      [](auto& a) { a.x.data = at(128); },  // aligned to 64, too
      [](auto& a) { a.x.data = nullptr; },
      [](auto& a) { a.x = {}; },
      [](auto& a) { a.x.dtype = DataType::bfloat16; },
      [](auto& a) { a.x.device = Device::gpu; },
      [](auto& a) { a.x.sizes[0] = 2; },
      [](auto& a) { a.x.strides[0] = 77; },
      [](auto& a) { a.groups = 2; },
      [](auto& a) { a.allow_tf32 = true; },
      [](auto& a) { a.prologue.activation = Activation::relu; },
      [](auto& a) { a.prologue.activation = Activation::gelu; },
      [&](auto& a) { a.prologue.scale = vector; },
      [&](auto& a) { a.prologue.shift = vector; },
      [&](auto& a) { a.sums.normaliser.grad_weight = vector; },
      [&](auto& a) { a.sums.normaliser.grad_bias = vector; },
      [](auto& a) { a.sums.normaliser.training = false; },
      [](auto& a) { a.gradient_prologue.output_is_of_x = true; },
      [](auto& a) { a.windows = SlidingChannels(8, 4, 2, 0.5); },
      [](auto& a) { a.windows = SlidingChannels(8, 4, 2, 0.25); },
  };
  const auto problem = [&](const auto& change) {
    PointwiseBackwardArguments a;
    a.x = {at(0), DataType::float32, {1, 8, 4, 4}, {128, 16, 4, 1}};
    a.grad_y = {at(0), DataType::float32, {1, 4, 4, 4}, {64, 16, 4, 1}};
    change(a);
    return a;
  };
  int same = 0;
  for (const auto& one : changes) {
    for (const auto& other : changes) {
      ProblemKey key, other_key;
      key.add(problem(one), 2);
      other_key.add(problem(other), 2);
      const std::string text = problem_text(problem(one), 2), other_text = problem_text(problem(other), 2);
      // Threads are of no consequence on a GPU, and the key has them all the same.
      EXPECT_EQ(key.is(other_key.words()), text == other_text) << text << '\n' << other_text;
      same += text == other_text ? 1 : 0;
    }
  }
  EXPECT_EQ(same, std::ssize(changes) + 2) << "but the first and the third are the same";
}

TEST(ProblemText, Words) {
  const std::string given[] = {"", "gpu_lists", "gpu_lists/rows=1", "gpu_lists/rows=2", "gpu_lists/rows=12"};
  for (const std::string& one : given) {
    for (const std::string& other : given) {
      SparseArguments a, b;
      a.config = one;
      b.config = other;
      ProblemKey key, other_key;
      key.add(a);
      other_key.add(b);
      EXPECT_EQ(key.is(other_key.words()), one == other) << one << ", " << other;
      EXPECT_EQ(problem_text(a, 1) == problem_text(b, 1), one == other) << one << ", " << other;
    }
  }
  SparseArguments a;
  a.config = given[2];
  EXPECT_TRUE(problem_text(a, 1).ends_with("config=\"gpu_lists/rows=1\", threads=1")) << problem_text(a, 1);
}

TEST(ProblemText, OfTheResult) {
  const std::string result = tuning::result_text(usual(), 1);
  DepthwiseArguments with_statistics = usual(), elsewhere = usual(), alone = usual(), other = usual();
  with_statistics.statistics.mean = with_statistics.statistics.m2 = {at(4), DataType::float32, 8, Device::gpu};
  with_statistics.statistics.is_before_pointwise = true;
  elsewhere.x.data = at(16);
  alone.y.data = nullptr;
  other.prologue.activation = Activation::silu;
  for (const auto& same : {with_statistics, elsewhere, alone}) EXPECT_EQ(tuning::result_text(same, 1), result);
  EXPECT_NE(tuning::result_text(other, 1), result);
  EXPECT_NE(problem_text(with_statistics, 1), problem_text(usual(), 1));
  PointwiseArguments pointwise, behind_another;
  behind_another.prologue_is_new = true;
  EXPECT_EQ(tuning::result_text(pointwise, 1), tuning::result_text(behind_another, 1));
}

TEST(Views, OtherMemoryIsTheSameProblem) {
  DepthwiseArguments a = usual();
  a.weight.data = at(64 + 32);  // rotated by 180°, as an input's gradient has it
  a.weight.strides[2] = -3, a.weight.strides[3] = -1;
  const std::vector<tuning::Buffer> buffers = tuning::buffers_of(a);
  ASSERT_EQ(buffers.size(), 4u);
  EXPECT_EQ(buffers[0].bytes, 2 * 8 * 9 * 10 * 2);
  EXPECT_EQ(buffers[1].bytes, 64 + 32 + ((7 * 9) + 1) * 2) << "16 bytes before its address, 128 from there on";
  EXPECT_EQ(buffers[2].bytes, 16 + 8 * 4);
  EXPECT_EQ(buffers[2].dtype, DataType::float32);
  EXPECT_EQ(buffers[3].bytes, 32 + (1440 + 7 + 8 * 160 + 9 * 16 + 1) * 2);
  std::vector<void*> memory;
  for (std::uintptr_t i = 1; i <= buffers.size(); ++i) memory.push_back(reinterpret_cast<void*>(i << 20));
  const DepthwiseArguments bound = tuning::with_buffers(a, memory);
  EXPECT_EQ(problem_text(bound, 1), problem_text(a, 1));
  EXPECT_EQ(bound.x.data, memory[0]);
  EXPECT_FALSE(bound.bias);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory[1]),
             place = reinterpret_cast<std::uintptr_t>(bound.weight.data);
  EXPECT_GE(place - 8 * 2, begin) << "its first element comes before its address";
  EXPECT_LE(place + (7 * 9 + 1) * 2, begin + static_cast<std::uintptr_t>(buffers[1].bytes));
  memory.pop_back();
  EXPECT_THROW(tuning::with_buffers(a, memory), InvalidArgument);
  memory.resize(5);
  EXPECT_THROW(tuning::with_buffers(a, memory), InvalidArgument);
}

}  // namespace
}  // namespace fusedsc::reference
