#include "fusedsc/common/cpu/float16.h"

#include <gtest/gtest.h>

#include <limits>

#include "reference/float16.h"

namespace fusedsc::reference {
namespace {

/// The library's conversions of one 16-bit type against the definition's.
template <class Storage>
void verify_conversions(const Format16& format, Storage (*encode)(float)) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Storage stored{static_cast<std::uint16_t>(bits)};
    const double expected = format.decode(stored.bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(to_float(stored)));
      EXPECT_TRUE(std::isnan(format.decode(encode(to_float(stored)).bits)));
      continue;
    }
    ASSERT_EQ(to_float(stored), expected);
    ASSERT_EQ(std::signbit(to_float(stored)), std::signbit(expected));
    ASSERT_EQ(encode(to_float(stored)).bits, stored.bits);

    // Between this number and the next: just below the middle, the middle itself (to even), just above it.
    const double next = format.decode(static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(expected) || !std::isfinite(next)) continue;
    const auto middle = static_cast<float>((expected + next) / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float value : {std::nextafter(middle, -infinity), middle, std::nextafter(middle, infinity)}) {
      ASSERT_EQ(encode(value).bits, format.encode(value)) << value;
    }
  }
  for (const float value : {65519.0f, 65520.0f, 1e6f, std::numeric_limits<float>::max(), 1e-9f, 1e-40f, -1e-40f}) {
    EXPECT_EQ(encode(value).bits, format.encode(value)) << value;
  }
}

TEST(Float16, ConversionsRoundToNearestEven) { verify_conversions<Float16>(kFloat16, to_float16); }
TEST(BFloat16, ConversionsRoundToNearestEven) { verify_conversions<BFloat16>(kBFloat16, to_bfloat16); }

}  // namespace
}  // namespace fusedsc::reference
