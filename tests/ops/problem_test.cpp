#include "fusedsc/common/problem.h"

#include <gtest/gtest.h>

#include "fusedsc/common/status.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc {
namespace {

/// Output positions whose window lies within the padded input, counted one by one.
std::int64_t count_positions(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t dilation,
                             std::int64_t before, std::int64_t after) {
  std::int64_t count = 0;
  for (std::int64_t first = -before; first + dilation * (kernel - 1) < input + after; first += stride) ++count;
  return count;
}

TEST(Window, OutputSizeCountsThePositions) {
  for (std::int64_t input = 1; input <= 12; ++input) {
    for (std::int64_t kernel = 1; kernel <= 5; ++kernel) {
      for (std::int64_t stride = 1; stride <= 4; ++stride) {
        for (std::int64_t dilation = 1; dilation <= 2; ++dilation) {
          for (const Padding& padding : {Padding{}, Padding{1, 2, 1, 2}, Padding{3, 0, 3, 0}}) {
            const Window window{{kernel, kernel}, {stride, stride}, {dilation, dilation}, padding};
            const auto expected = count_positions(input, kernel, stride, dilation, padding.left, padding.right);
            if (expected == 0) {
              EXPECT_THROW(window.output_height(input), InvalidArgument);
              continue;
            }
            EXPECT_EQ(window.output_width(input), expected);
            EXPECT_EQ(window.output_height(input), expected);
          }
        }
      }
    }
  }
}

TEST(Window, AxesAreVerticalThenHorizontal) {
  const Window window{{3, 5}, {1, 2}, {2, 1}, {4, 3, 2, 1}};
  EXPECT_EQ(window.output_height(20), 20 + 2 + 1 - 4);
  EXPECT_EQ(window.output_width(20), (20 + 4 + 3 - 5) / 2 + 1);
}

TEST(Window, SamePaddingGivesInputOverStrideRoundedUp) {
  for (std::int64_t input = 1; input <= 20; ++input) {
    for (std::int64_t kernel = 1; kernel <= 7; ++kernel) {
      for (std::int64_t stride = 1; stride <= 3; ++stride) {
        Window window{{kernel, kernel}, {stride, stride}, {1, 1}, {}};
        window.padding = same_padding(input, input + 1, window);
        EXPECT_EQ(window.output_height(input), (input + stride - 1) / stride);
        EXPECT_EQ(window.output_width(input + 1), (input + stride) / stride);
        EXPECT_LE(window.padding.bottom - window.padding.top, 1);  // the odd one goes to the bottom and the right
        EXPECT_GE(window.padding.bottom, window.padding.top);
        EXPECT_GE(window.padding.right, window.padding.left);
      }
    }
  }
  const Padding padding = same_padding(224, 224, {{3, 3}, {2, 2}, {1, 1}, {}});  // TensorFlow's best-known case
  EXPECT_EQ(padding.top, 0);
  EXPECT_EQ(padding.bottom, 1);
}

TEST(Activation, NamesGoBothWays) {
  for (const char* name : {"identity", "relu", "relu6", "silu", "hardswish", "gelu"}) {
    EXPECT_STREQ(name_of(activation_from_name(name)), name);
  }
}

TEST(Activation, UnknownNameListsTheKnown) {
  try {
    activation_from_name("mish");
    FAIL() << "mish was accepted";
  } catch (const InvalidArgument& error) {
    for (const char* part : {"activation", "mish", "identity", "relu", "relu6", "silu", "hardswish", "gelu"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(DataType, SizesNamesAndAccumulation) {
  EXPECT_EQ(size_of(DataType::float32), 4u);
  EXPECT_EQ(size_of(DataType::float64), 8u);
  EXPECT_EQ(size_of(DataType::float16), 2u);
  EXPECT_EQ(size_of(DataType::bfloat16), 2u);
  EXPECT_STREQ(name_of(DataType::bfloat16), "bfloat16");
  EXPECT_EQ(accumulation_type(DataType::float16), DataType::float32);
  EXPECT_EQ(accumulation_type(DataType::bfloat16), DataType::float32);
  EXPECT_EQ(accumulation_type(DataType::float32), DataType::float32);
  EXPECT_EQ(accumulation_type(DataType::float64), DataType::float64);
}

TEST(Layout, OfDenseTensors) {
  const Sizes sizes{2, 3, 4, 5};
  EXPECT_EQ(dense_strides(sizes, Layout::contiguous), (Sizes{60, 20, 5, 1}));
  EXPECT_EQ(dense_strides(sizes, Layout::channels_last), (Sizes{60, 1, 15, 3}));
  for (const Layout layout : {Layout::contiguous, Layout::channels_last}) {
    EXPECT_EQ(layout_of(sizes, dense_strides(sizes, layout)), layout);
  }
}

TEST(Layout, OfViews) {
  EXPECT_EQ(layout_of({2, 3, 4, 5}, {1000, 200, 10, 1}), Layout::contiguous);  // cut out of a larger tensor
  EXPECT_EQ(layout_of({2, 3, 4, 5}, {1000, 1, 80, 16}), Layout::channels_last);
  EXPECT_EQ(layout_of({2, 3, 4, 5}, {60, 20, 1, 4}), Layout::strided);        // transposed
  EXPECT_EQ(layout_of({2, 3, 4, 5}, {120, 40, 10, 2}), Layout::strided);      // every second column
  EXPECT_EQ(layout_of({2, 1, 4, 5}, {20, 20, 5, 1}), Layout::channels_last);  // one channel is both
  EXPECT_EQ(layout_of({2, 3, 1, 1}, {3, 1, 1, 1}), Layout::channels_last);    // one position is both
}

TEST(Overlap, OfRangesOfBytes) {
  float memory[32] = {};
  const auto view = [&](int first, const Sizes& sizes, const Sizes& strides) {
    return ConstTensorView(memory + first, DataType::float32, sizes, strides);
  };
  const Sizes row{1, 1, 1, 8}, dense{8, 8, 8, 1};
  EXPECT_TRUE(overlap(view(0, row, dense), view(7, row, dense)));
  EXPECT_FALSE(overlap(view(0, row, dense), view(8, row, dense)));
  EXPECT_TRUE(overlap(view(0, row, {8, 8, 8, 2}), view(8, row, dense)));
  EXPECT_TRUE(overlap(view(0, row, {0, 0, 0, 0}), view(0, row, dense)));
  EXPECT_FALSE(overlap(view(0, {1, 1, 0, 8}, dense), view(0, row, dense)));
  EXPECT_FALSE(overlap(ConstTensorView(), view(0, row, dense)));
}

}  // namespace
}  // namespace fusedsc
