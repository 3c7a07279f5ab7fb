/// The index function against Algorithm 1, run as it is printed.
#include "fusedsc/common/sliding_channels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/convolution.h"

namespace fusedsc::reference {
namespace {

constexpr double kOverlaps[] = {0, 0.1, 0.25, 0.33, 1.0 / 3, 0.5, 0.66, 0.75, 0.9, 0.999};

TEST(SlidingChannels, AreThoseOfAlgorithm1) {
  for (std::int64_t channels = 1; channels <= 40; ++channels) {
    for (std::int64_t groups = 1; groups <= channels; ++groups) {
      for (const double overlap : kOverlaps) {
        for (const std::int64_t filters : {1, 2, 7, 40, 83}) {
          SCOPED_TRACE(testing::Message() << channels << " channels, " << filters << " filters, " << groups
                                          << " groups, overlap " << overlap);
          const SlidingChannels windows(channels, filters, groups, overlap);
          const ChannelMap map = channel_map(channels, filters, groups, overlap);
          ASSERT_EQ(windows.width, map.width);
          ASSERT_GE(windows.step, 1);
          // With one group Algorithm 1 takes (0, C) and (0, 0) for two windows.
          if (groups > 1) {
            ASSERT_EQ(windows.cycle, map.cyclic_dist);
          }
          for (std::int64_t o = 0; o < filters; ++o) {
            const std::int64_t first = windows.first(o);
            ASSERT_EQ(first, map.first[static_cast<std::size_t>(o)]) << "filter " << o;
            ASSERT_EQ(first == windows.first(0), o % windows.cycle == 0) << "filter " << o;
            for (std::int64_t k = 0; k < windows.width; ++k) {
              ASSERT_EQ(windows.place(first, (first + k) % channels), k);
            }
            if (windows.width < channels) {
              ASSERT_GE(windows.place(first, (first + windows.width) % channels), windows.width);
            }
          }
        }
      }
    }
  }
}

/// int(overlap * width) is below the width for every overlap below 1: the largest of them does not round up to it.
TEST(SlidingChannels, AlwaysMove) {
  const double largest = std::nextafter(1.0, 0.0);
  for (std::int64_t width = 1; width <= 100000; ++width) {
    ASSERT_EQ(SlidingChannels(width, 1, 1, largest).step, 1) << width;
  }
  for (int bits = 17; bits < 53; ++bits) {
    for (const std::int64_t around : {-1, 0, 1}) {
      const std::int64_t width = (std::int64_t{1} << bits) + around;
      ASSERT_GE(SlidingChannels(width, 1, 1, largest).step, 1) << width;
    }
  }
}

TEST(SlidingChannels, RefuseWhatHasNoWindow) {
  const auto refused = [](std::int64_t groups, double overlap, const std::string& name) {
    try {
      SlidingChannels(8, 16, groups, overlap);
      ADD_FAILURE() << "accepted: " << groups << " groups, overlap " << overlap;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).rfind(name + ": it is ", 0), 0u) << error.what();
    }
  };
  refused(9, 0.5, "groups");
  refused(0, 0.5, "groups");
  refused(-1, 0.5, "groups");
  for (const double overlap :
       {-0.25, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    refused(2, overlap, "overlap");
  }
}

}  // namespace
}  // namespace fusedsc::reference
