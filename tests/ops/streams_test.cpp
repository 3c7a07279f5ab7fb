/// Depthwise passes that store around the caches: on processors whose vectors are whole cache lines.
#include "fusedsc/common/cpu/streams.h"

#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {
namespace {

class Streams : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    use_streams(StreamUse::always);
    align_tensors(true);
  }
  void TearDown() override {
    align_tensors(false);
    use_streams(StreamUse::where_it_pays);
  }

  static std::vector<DepthwiseGeometry> geometries() {
    std::vector<DepthwiseGeometry> geometries;
    for (const std::int64_t stride : {1, 2}) {
      for (const std::int64_t channels : {8, 16, 24, 64}) {  // whole lines of some types, and of none
        for (const std::int64_t width : {5, 16, 31}) {
          geometries.push_back({{3, channels, 9, width}, centered(3, stride)});
        }
      }
      geometries.push_back({{2, 32, 12, 14}, {{3, 3}, {stride, stride}, {1, 1}, {3, 0, 2, 1}}});
      geometries.push_back({{2, 32, 12, 14}, centered(5, stride)});
    }
    return geometries;
  }
};
INSTANTIATE_TEST_SUITE_P(DataTypes, Streams, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Streams, Forward) {
  using Output = ForwardFusion::Output;
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Output output : {Output::plain, Output::statistics, Output::epilogue}) {
      const ForwardCase<DepthwiseGeometry> problem{
          GetParam(), geometry, {.bias = true, .output = output}, Memories::all(Memory::channels_last)};
      for_each_case(std::vector{problem}, verify_forward<DepthwiseGeometry>);
    }
  }
}

TEST_P(Streams, Backward) {
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const BackwardFusion& fusion : {BackwardFusion{}, BackwardFusion{.prologue = true, .sums = true},
                                         BackwardFusion{.grad_add = true}, BackwardFusion{.grad_weight = false}}) {
      const BackwardCase<DepthwiseGeometry> problem{GetParam(), geometry, fusion, Memories::all(Memory::channels_last)};
      for_each_case(std::vector{problem}, verify_backward<DepthwiseGeometry>);
    }
  }
}

TEST(StreamsOfTensors, HaveWholeLines) {
  alignas(64) static float memory[1];
  const auto view = [&](const Sizes& sizes, Layout layout) {
    return TensorView(memory, DataType::float32, sizes, dense_strides(sizes, layout));
  };
  EXPECT_TRUE(has_whole_lines(view({2, 32, 5, 7}, Layout::channels_last), 64));
  EXPECT_FALSE(has_whole_lines(view({2, 32, 5, 7}, Layout::channels_last), 32)) << "vectors of half a line";
  EXPECT_FALSE(has_whole_lines(view({2, 24, 5, 7}, Layout::channels_last), 64)) << "positions of a line and a half";
  EXPECT_FALSE(has_whole_lines(view({2, 32, 5, 7}, Layout::contiguous), 64));
  TensorView shifted = view({2, 32, 5, 7}, Layout::channels_last);
  shifted.data = reinterpret_cast<char*>(memory) + 4;
  EXPECT_FALSE(has_whole_lines(shifted, 64));
}

TEST(StreamsOfTensors, PayWhereTheyAreLarge) {
  EXPECT_FALSE(streams_pay(1 << 20));
  use_streams(StreamUse::always);
  EXPECT_TRUE(streams_pay(1));
  use_streams(StreamUse::never);
  EXPECT_FALSE(streams_pay(std::int64_t{1} << 40));
  use_streams(StreamUse::where_it_pays);
}

}  // namespace
}  // namespace fusedsc::reference
