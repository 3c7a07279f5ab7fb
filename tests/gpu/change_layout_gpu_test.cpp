/// Copies in the other layout.
#include "fusedsc/fused/change_layout.h"

#include "fusedsc/common/status.h"
#include "gpu/gpu_under_test.h"

namespace fusedsc::reference {
namespace {

class ChangeLayoutGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, ChangeLayoutGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

constexpr std::array<Memory, 2> kLayouts = {Memory::contiguous, Memory::channels_last};

/// One tile and several, whole ones and parts; runs and pairs that are whole, that cross channels, and that are not.
TEST_P(ChangeLayoutGpu, Copies) {
  const Sizes kShapes[] = {{2, 64, 8, 8},   {3, 72, 7, 7}, {1, 8, 3, 3},   {2, 160, 14, 14}, {2, 9, 5, 13},
                           {1, 131, 1, 70}, {3, 5, 3, 3},  {1, 3, 33, 37}, {2, 24, 16, 9},   {2, 64, 1, 2}};
  Random random(31);
  for (const bool aligned : {true, false}) {
    align_tensors(aligned);
    for (const Sizes& sizes : kShapes) {
      SCOPED_TRACE(testing::PrintToString(sizes));
      for (const Memory memory : kLayouts) {
        const Memory other = memory == kLayouts[0] ? kLayouts[1] : kLayouts[0];
        Tensor from(GetParam().dtype, sizes, memory), to(GetParam().dtype, sizes, other),
            expected(GetParam().dtype, sizes, other);
        expected.fill(from.fill(random, -4, 4).values());
        change_layout({from, to}, {});
        reference::memory().wait();
        EXPECT_TRUE(to.same_bits(expected)) << "from " << name_of(memory);
        EXPECT_TRUE(to.surroundings_untouched()) << "from " << name_of(memory);
      }
    }
  }
}

/// As where a batch is every other image of a larger one.
TEST_P(ChangeLayoutGpu, ImagesApart) {
  const Sizes all{4, 72, 6, 7}, half{2, 72, 6, 7};
  Random random(32);
  for (const bool spreads : {false, true}) {
    for (const Memory memory : kLayouts) {
      Tensor whole(GetParam().dtype, all, memory),
          part(GetParam().dtype, half, memory == kLayouts[0] ? kLayouts[1] : kLayouts[0]);
      TensorView every_other = whole;
      every_other.sizes = half;
      every_other.strides[0] *= 2;
      if (spreads) {
        part.fill(random, -4, 4);
        change_layout({part, every_other}, {});
      } else {
        whole.fill(random, -4, 4);
        change_layout({every_other, part}, {});
      }
      reference::memory().wait();
      const Array expected = part.values(), actual = whole.values();
      for (std::int64_t n = 0; n < half[0]; ++n) {
        for (std::int64_t i = 0; i < half[1] * half[2] * half[3]; ++i) {
          const std::int64_t c = i / (half[2] * half[3]), h = i / half[3] % half[2], w = i % half[3];
          ASSERT_EQ(actual.at(2 * n, c, h, w).value, expected.at(n, c, h, w).value) << n << ", " << i;
        }
      }
      EXPECT_TRUE(part.surroundings_untouched());
    }
  }
}

TEST_P(ChangeLayoutGpu, EmptyBatch) {
  Tensor from(GetParam().dtype, {0, 8, 4, 4}), to(GetParam().dtype, {0, 8, 4, 4}, Memory::channels_last);
  EXPECT_NO_THROW(change_layout({from, to}, {}));
}

TEST_P(ChangeLayoutGpu, Reasons) {
  const Sizes sizes{2, 8, 4, 4};
  Tensor contiguous(GetParam().dtype, sizes), channels_last(GetParam().dtype, sizes, Memory::channels_last),
      smaller(GetParam().dtype, {1, 8, 4, 4}, Memory::channels_last), spread(GetParam().dtype, sizes, Memory::spread),
      other(GetParam().dtype == DataType::float32 ? DataType::float64 : DataType::float32, sizes,
            Memory::channels_last);
  EXPECT_EQ(why_not_change_layout({contiguous, channels_last}), "");
  EXPECT_NE(why_not_change_layout({contiguous, contiguous}), "");
  EXPECT_NE(why_not_change_layout({contiguous, smaller}), "");
  EXPECT_NE(why_not_change_layout({contiguous, other}), "");
  EXPECT_NE(why_not_change_layout({spread, channels_last}), "");
  EXPECT_THROW(change_layout({spread, channels_last}, {}), Unsupported);
}

}  // namespace
}  // namespace fusedsc::reference
