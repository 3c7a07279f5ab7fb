/// Copies in the other layout.
#include "fusedsc/fused/change_layout.h"

#include <cmath>

#include "fusedsc/common/status.h"
#include "gpu/gpu_under_test.h"

namespace fusedsc::reference {
namespace {

class ChangeLayoutGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, ChangeLayoutGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

constexpr std::array<Memory, 2> kLayouts = {Memory::contiguous, Memory::channels_last};

/// One tile and several of channels and of positions, whole ones and parts; runs of channels and pieces of positions
/// that can be moved at once, one of the two, and neither.
TEST_P(ChangeLayoutGpu, Copies) {
  const Sizes kShapes[] = {{2, 64, 8, 8},   {3, 72, 7, 7},   {1, 8, 3, 3},     {2, 160, 14, 14}, {2, 9, 5, 13},
                           {1, 131, 1, 70}, {3, 5, 3, 3},    {1, 3, 33, 37},   {2, 24, 16, 9},   {2, 64, 1, 2},
                           {2, 24, 28, 28}, {1, 33, 28, 28}, {1, 8, 112, 112}, {1, 96, 14, 14},  {1, 144, 10, 13},
                           {2, 144, 7, 7},  {1, 33, 7, 7},   {1, 960, 7, 7},   {1, 960, 1, 4},   {1, 96, 1, 1}};
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

/// As where a batch is every other image of a larger one, or was cut out of something else: images that are less
/// aligned than their rows, too.
TEST_P(ChangeLayoutGpu, ImagesApart) {
  Random random(32);
  for (const Sizes& sizes : {Sizes{2, 72, 6, 7}, Sizes{2, 72, 6, 8}}) {
    const std::int64_t image = sizes[1] * sizes[2] * sizes[3];
    for (const std::int64_t distance : {2 * image, image + 4, image + 1}) {
      for (const bool spreads : {false, true}) {
        for (const Memory memory : kLayouts) {
          SCOPED_TRACE(testing::Message() << testing::PrintToString(sizes) << ", " << distance << " apart, "
                                          << name_of(memory) << (spreads ? " to" : " from"));
          Tensor row(GetParam().dtype, {1, 1, 1, distance + image}),
              part(GetParam().dtype, sizes, memory == kLayouts[0] ? kLayouts[1] : kLayouts[0]);
          TensorView images = row;
          images.sizes = sizes;
          images.strides = strides_of(sizes, memory);
          images.strides[0] = distance;
          if (spreads) {
            part.fill(random, -4, 4);
            change_layout({part, images}, {});
          } else {
            row.fill(random, -4, 4);
            change_layout({images, part}, {});
          }
          reference::memory().wait();
          const Array expected = part.values(), actual = row.values();
          for_each_index(sizes, [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
            const auto& strides = images.strides;
            const std::int64_t offset = n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3];
            ASSERT_EQ(actual.at(0, 0, 0, offset).value, expected.at(n, c, h, w).value) << n << ", " << c;
          });
          for (std::int64_t i = image; spreads && i < distance; ++i) {
            ASSERT_TRUE(std::isnan(actual.at(0, 0, 0, i).value)) << "between images";
          }
          EXPECT_TRUE(part.surroundings_untouched());
          EXPECT_TRUE(row.surroundings_untouched());
        }
      }
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
