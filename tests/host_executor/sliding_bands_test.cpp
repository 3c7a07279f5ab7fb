/// What the kernels of sliding-channel convolutions take to be a filter's window, against the one place that knows.
#include "fusedsc/forward/sliding_channel/planes/sliding_bands.h"

#include <gtest/gtest.h>

namespace fusedsc::gpu {
namespace {

void check_bands(const SlidingChannels& windows, std::int64_t filters) {
  const WindowLines lines(windows, filters);
  for (const bool rows_are_channels : {false, true}) {
    const SlidingBands bands(lines, rows_are_channels);
    for (const int tile : {16, 32, 64, 256}) {
      for (int row = 0; row < bands.rows(); ++row) {
        const auto band = bands.band(row / tile * tile, tile);
        ASSERT_LE(band.count, bands.most(tile));
        for (int k = 0; k < bands.depth(); ++k) {
          const int filter = rows_are_channels ? bands.plane_of_depth(k) : bands.plane_of_row(row);
          const int channel = rows_are_channels ? bands.plane_of_row(row) : bands.plane_of_depth(k);
          const std::int64_t place = windows.place(windows.first(filter), channel);
          ASSERT_EQ(bands.filter(row, k), filter);
          if (place >= windows.width) {
            ASSERT_GE(bands.place(row, k), windows.width);
            continue;
          }
          ASSERT_EQ(bands.place(row, k), place);
          const int eight = (k / 8 - band.begin + bands.eights()) % bands.eights();
          ASSERT_LT(eight, band.count) << "row " << row << ", k " << k << " of tiles of " << tile;
        }
      }
    }
  }
}

TEST(SlidingBands, HaveAllOfEveryWindow) {
  int checked = 0;
  for (const std::int64_t channels : {32, 64, 96}) {
    for (const std::int64_t filters : {32, 64, 96, 128}) {
      for (const std::int64_t groups : {1, 2, 3, 4, 8}) {
        for (const double overlap : {0.0, 0.25, 0.33, 0.5, 0.75, 0.9}) {
          const SlidingChannels windows(channels, filters, groups, overlap);
          if (!WindowLines::can_be(windows, filters)) continue;
          SCOPED_TRACE(testing::Message() << channels << " channels, " << filters << " filters, " << groups
                                          << " groups, overlap " << overlap);
          check_bands(windows, filters);
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(SlidingBands, EachLineIsAnotherFilter) {
  const SlidingChannels windows(64, 128, 2, 0.25);  // windows in the order of filters begin at 0, 24, 48, 8...
  const WindowLines lines(windows, 128);
  std::vector<bool> seen(128);
  for (int line = 0; line < 128; ++line) {
    EXPECT_EQ(lines.first(line), windows.first(lines.filter(line)));
    EXPECT_FALSE(seen[static_cast<std::size_t>(lines.filter(line))]);
    seen[static_cast<std::size_t>(lines.filter(line))] = true;
  }
}

}  // namespace
}  // namespace fusedsc::gpu
