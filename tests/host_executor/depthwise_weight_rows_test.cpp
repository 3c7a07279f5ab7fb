/// The second pass of depthwise weight gradients of Hopper GPUs, with as many rows of partial sums as there may be.
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_rows_launch.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "gpu/gpu_under_test.h"

namespace fusedsc::reference {
namespace {

/// Whole numbers, whose sums are exact in any order and in 16 bits.
float partial(int row, int tap, int channel) { return static_cast<float>((row * 7 + tap * 3 + channel) % 5 - 2); }

void verify(DataType dtype, int rows, int kernel, int channels, bool has_bias, bool has_bias_row, std::int64_t step) {
  SCOPED_TRACE(testing::Message() << rows << " rows, window of " << kernel << ", " << channels << " channels, bias "
                                  << has_bias);
  const int taps = kernel * kernel, row_taps = taps + (has_bias_row ? 1 : 0);
  std::vector<float> partials(static_cast<std::size_t>(rows) * row_taps * channels);
  std::vector<float> expected(static_cast<std::size_t>(taps + 1) * channels);
  for (int row = 0, i = 0; row < rows; ++row) {
    for (int tap = 0; tap < row_taps; ++tap) {
      for (int channel = 0; channel < channels; ++channel, ++i) {
        partials[i] = partial(row, tap, channel);
        expected[channel * (taps + 1) + tap] += partials[i];
      }
    }
  }
  constexpr std::uint16_t kUntouched = 0x7e7e;
  std::vector<std::uint16_t> weight(static_cast<std::size_t>(channels) * taps * step, kUntouched), bias(channels);
  DepthwiseBackwardArguments a;
  a.x.dtype = a.grad_y.dtype = dtype;
  a.x.sizes = {1, channels, 9, 9};
  a.window.kernel = {kernel, kernel};
  a.grad_weight = {weight.data(), dtype, {channels, 1, kernel, kernel}, {taps * step, taps, kernel * step, step}};
  if (has_bias) a.grad_bias = {bias.data(), dtype, channels, Device::cpu};
  gpu::hopper::launch_sum_weight_rows("test", partials.data(), rows, row_taps, a, nullptr);
  const auto value = [&](std::uint16_t bits) {
    if (dtype == DataType::bfloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return bits >> 15 != 0 ? -magnitude : magnitude;
  };
  for (int channel = 0; channel < channels; ++channel) {
    for (int tap = 0; tap < taps; ++tap) {
      ASSERT_EQ(value(weight[(channel * taps + tap) * step]), expected[channel * (taps + 1) + tap])
          << "channel " << channel << ", tap " << tap;
      ASSERT_EQ(weight[(channel * taps + tap + 1) * step - 1] == kUntouched, step > 1);
    }
    ASSERT_EQ(value(bias[channel]), has_bias ? expected[channel * (taps + 1) + taps] : 0) << "channel " << channel;
  }
}

class DepthwiseWeightRows : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override { use_gpu_wave_size(32); }
};
INSTANTIATE_TEST_SUITE_P(Types, DepthwiseWeightRows, testing::Values(DataType::float16, DataType::bfloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(DepthwiseWeightRows, AreAddedUp) {
  for (const int kernel : {3, 5, 7}) {
    for (const int channels : {8, 24, 240, 1152}) {
      for (const int rows : {2, 3, 8, 9, 44, 132, 396, 1100}) {
        if (rows * channels > 40'000) continue;
        for (const bool has_bias : {false, true}) {
          verify(GetParam(), rows, kernel, channels, has_bias, has_bias || rows % 2 == 0, rows == 44 ? 2 : 1);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(DepthwiseWeightRows, OfRowsBeyondNumbersOf32Bits) { verify(GetParam(), 2, 5, 41'984, true, true, 1); }

}  // namespace
}  // namespace fusedsc::reference
