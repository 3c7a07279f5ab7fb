/// Copies in the other layout, on the CPU.
#include "fusedsc/fused/change_layout.h"

#include "fusedsc/common/cpu/streams.h"
#include "fusedsc/common/status.h"
#include "ops/each_target.h"

namespace fusedsc::reference {
namespace {

constexpr std::array<Memory, 2> kLayouts = {Memory::contiguous, Memory::channels_last};

class ChangeLayout : public EachTarget {
 protected:
  void TearDown() override {
    align_tensors(false);
    use_streams(StreamUse::where_it_pays);
    EachTarget::TearDown();
  }

  /// Against the reference's own copy, bit by bit.
  static void verify(DataType dtype, const Sizes& sizes, Memory memory, int threads) {
    SCOPED_TRACE(testing::Message() << name_of(dtype) << ' ' << testing::PrintToString(sizes) << " from "
                                    << name_of(memory) << ", " << threads << " threads");
    Random random(31);
    const Memory other = memory == kLayouts[0] ? kLayouts[1] : kLayouts[0];
    Tensor from(dtype, sizes, memory), to(dtype, sizes, other), expected(dtype, sizes, other);
    expected.fill(from.fill(random, -4, 4).values());
    change_layout({from, to}, {.parallel_for = thread_parallel_for(threads), .threads = threads});
    EXPECT_TRUE(to.same_bits(expected));
    EXPECT_TRUE(to.surroundings_untouched());
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, ChangeLayout, EachTarget::all(), EachTarget::name);

/// One tile and several of channels and of positions, whole ones and parts; fewer of either than a square has.
TEST_P(ChangeLayout, Copies) {
  const Sizes kShapes[] = {{2, 64, 8, 8},   {3, 72, 7, 7}, {1, 8, 3, 3},   {2, 160, 14, 14}, {2, 9, 5, 13},
                           {1, 131, 1, 70}, {3, 5, 3, 3},  {1, 3, 33, 37}, {2, 24, 16, 9},   {2, 64, 1, 2},
                           {2, 32, 16, 16}, {1, 1, 9, 9},  {1, 96, 1, 1},  {1, 128, 12, 32}};
  for (const StreamUse use : {StreamUse::never, StreamUse::always}) {
    use_streams(use);
    for (const bool aligned : {true, false}) {
      align_tensors(aligned);
      for (const DataType dtype : kDataTypes) {
        for (const Sizes& sizes : kShapes) {
          for (const Memory memory : kLayouts) {
            for (const int threads : {1, 3}) verify(dtype, sizes, memory, threads);
          }
        }
      }
    }
  }
}

/// Every other image of a larger batch.
TEST_P(ChangeLayout, ImagesApart) {
  Random random(32);
  const Sizes all{4, 24, 5, 7};
  for (const Memory memory : kLayouts) {
    Tensor from(DataType::float32, all, memory),
        to(DataType::float32, {2, 24, 5, 7}, memory == kLayouts[0] ? kLayouts[1] : kLayouts[0]);
    from.fill(random, -4, 4);
    ConstTensorView every_other = from;
    every_other.sizes[0] = 2;
    every_other.strides[0] *= 2;
    change_layout({every_other, to}, {});
    const Array actual = to.values(), expected = from.values();
    for_each_index(to.view().sizes, [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
      ASSERT_EQ(actual.at(n, c, h, w).value, expected.at(2 * n, c, h, w).value) << n << ", " << c;
    });
  }
}

TEST(ChangeLayoutReasons, AreNamed) {
  const Sizes sizes{2, 8, 4, 4};
  Tensor contiguous(DataType::float32, sizes), channels_last(DataType::float32, sizes, Memory::channels_last),
      smaller(DataType::float32, {1, 8, 4, 4}, Memory::channels_last), spread(DataType::float32, sizes, Memory::spread),
      other(DataType::float64, sizes, Memory::channels_last), nothing(DataType::float32, {0, 8, 4, 4}),
      no_images(DataType::float32, {0, 8, 4, 4}, Memory::channels_last);
  EXPECT_EQ(why_not_change_layout({contiguous, channels_last}), "");
  EXPECT_NE(why_not_change_layout({contiguous, contiguous}), "");
  EXPECT_NE(why_not_change_layout({contiguous, smaller}), "");
  EXPECT_NE(why_not_change_layout({contiguous, other}), "");
  EXPECT_THROW(change_layout({spread, channels_last}, {}), Unsupported);
  EXPECT_NO_THROW(change_layout({nothing, no_images}, {}));
}

}  // namespace
}  // namespace fusedsc::reference
