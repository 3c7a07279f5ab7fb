/// The tiling parameter generator: the paper's worked example, its equations, and what comes out of problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/generator/depthwise_tiling.h"
#include "fusedsc/tuning/generator/fragment_tiling.h"
#include "fusedsc/tuning/generator/matrix_tiling.h"
#include "fusedsc/tuning/generator/pointwise_tiling.h"

namespace fusedsc::tuning {
namespace {

const DeviceLimits& dcu() { return limits_of("gfx906"); }

/// Section 5.1.2: 56 input channels, a wave of 8 x 64 outputs, groups of 8.
TEST(Tiling, WorkedExample) {
  const PointwiseTiling tiling{.wave_w = 8, .wave_c = 64, .group_c = 8};
  EXPECT_EQ(tiling.filters(64), 8);
  EXPECT_EQ(tiling.thread_c(64), 8);
  EXPECT_DOUBLE_EQ(tiling.intensity(64), 4);
  const PointwiseTiling simple{.wave_w = 8, .wave_c = 64, .group_c = 1};  // Fig. 8: 8 multiplications by 9 elements
  EXPECT_DOUBLE_EQ(simple.intensity(64), 8.0 / 9);
}

/// Eqs. 1 to 7 by hand: 4 waves as 2 x 2, two blocks a unit.
TEST(Tiling, EquationsByHand) {
  const PointwiseTiling tiling{8, 64, 4, 2, 2, 2, 8};
  const PointwiseResources resources = resources_of(tiling, dcu());
  EXPECT_EQ(resources.limit_shared, 32768);                             // 64 KB / 2
  EXPECT_EQ(resources.limit_registers, 128);                            // 65536 / (2 * 4 * 64)
  EXPECT_EQ(resources.used_shared, 4 * (2 * 8 * 8 + 2 * 64 * 8) * 2);   // 9216
  EXPECT_EQ(resources.loaded_inputs, 1);                                // ceil(128 / 256)
  EXPECT_EQ(resources.loaded_filters, 4);                               // ceil(1024 / 256)
  EXPECT_EQ(resources.used_registers, 8 * 8 + (8 + 8) + (1 + 4) + 30);  // 115
  EXPECT_TRUE(resources.fit());
  const PointwiseTiling crowded{8, 64, 4, 2, 2, 3, 8};
  EXPECT_EQ(resources_of(crowded, dcu()).limit_registers, 85);
  EXPECT_FALSE(resources_of(crowded, dcu()).fit());
  EXPECT_EQ(resources_of(tiling, dcu(), 8).used_shared, 2 * resources.used_shared);
}

TEST(Tiling, Table1) {
  const std::string table = table_of({8, 64, 4, 2, 2, 2, 8}, dcu());
  for (const char* line :
       {"Wave_W      8       Output width handled by a wavefront", "Wave_C      64 ", "Wave_N      4 ",
        "Repeat_W    2 ", "Repeat_C    2 ", "Block_N     2 ", "Group_C     8 ", "F_num       8 ", "Thread_C    8 ",
        "Intensity   4 ", "LimitS      32768 ", "UsedS       9216 ", "LimitR      128 ", "UsedR       115 "}) {
    EXPECT_NE(table.find(line), std::string::npos) << line << "\n" << table;
  }
}

TEST(Tiling, WordsAreReadBack) {
  const PointwiseTiling tiling{8, 64, 4, 2, 2, 2, 8};
  const std::string words = printed(config_of(tiling));
  EXPECT_EQ(words, "wave_w=8 wave_c=64 wave_n=4 repeat_w=2 repeat_c=2 block_n=2 group_c=8");
  EXPECT_EQ(pointwise_tiling_of(parsed(words)), tiling);
  for (const char* wrong : {"wave_w=8", "wave_w=8 wave_c=64 wave_n=3 repeat_w=2 repeat_c=2 block_n=2 group_c=8",
                            "wave_w=8 wave_c=64 wave_n=4 repeat_w=2 repeat_c=2 block_n=2 group_c=8 rows=3"}) {
    EXPECT_THROW(pointwise_tiling_of(parsed(wrong)), InvalidArgument) << wrong;
  }
  const DepthwiseTiling depthwise{2, 4, 3, 5};
  EXPECT_EQ(printed(config_of(depthwise)), "channels=2 columns=4 block_n=5 ahead=3");
  EXPECT_EQ(depthwise_tiling_of(parsed("channels=2 columns=4 block_n=5 ahead=3")), depthwise);
  EXPECT_THROW(depthwise_tiling_of(parsed("channels=2")), InvalidArgument);
}

/// "If the output width is 16, then Wave_W can be 1, 2, 4, 8, 16."
TEST(Tiling, FactorRule) {
  EXPECT_EQ(tile_sizes(16, 64, Edges::exact), (std::vector<int>{1, 2, 4, 8, 16}));
  EXPECT_EQ(tile_sizes(49, 64, Edges::exact), (std::vector<int>{1, 7, 49}));
  EXPECT_EQ(tile_sizes(49, 64, Edges::masked), (std::vector<int>{1, 2, 4, 7, 8, 49}));  // 16 would cover 64
  EXPECT_EQ(tile_sizes(1, 64, Edges::masked), (std::vector<int>{1}));
  EXPECT_EQ(tile_sizes(0, 64, Edges::masked), (std::vector<int>{1, 2, 4, 8, 16, 32, 64}));
}

/// Everything that is made keeps all rules, for layers of mobile networks on all devices.
TEST(Tiling, AllKeepTheRules) {
  for (const DeviceLimits& limits : known_limits()) {
    for (const PointwiseExtents& extents :
         {PointwiseExtents{784, 64, 56}, PointwiseExtents{196, 576, 96}, PointwiseExtents{49, 320, 960}}) {
      const auto tilings = pointwise_tilings(extents, limits, Edges::exact);
      ASSERT_FALSE(tilings.empty()) << limits.architecture;
      std::set<std::string> different;
      for (const PointwiseTiling& tiling : tilings) {
        const std::string words = printed(config_of(tiling));
        EXPECT_TRUE(different.insert(words).second) << words;
        EXPECT_EQ(extents.positions % tiling.wave_w, 0) << words;
        EXPECT_EQ(extents.outputs % tiling.wave_c, 0) << words;
        EXPECT_EQ(extents.inputs % tiling.group_c, 0) << words;
        EXPECT_EQ(tiling.wave_n, tiling.repeat_w * tiling.repeat_c) << words;
        EXPECT_LE(tiling.wave_n, 16) << words;
        EXPECT_LE(tiling.block_n * tiling.wave_n, limits.waves) << words;
        EXPECT_EQ(tiling.filters(limits.wave) * tiling.thread_c(limits.wave), tiling.wave_c) << words;
        const PointwiseResources resources = resources_of(tiling, limits);
        EXPECT_LE(resources.used_shared, resources.limit_shared) << words;
        EXPECT_LE(resources.used_registers, resources.limit_registers) << words;
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Tiling, TheBestAreFewAndDiffer) {
  const auto best = best_pointwise_tilings({196, 576, 96}, limits_of("sm_90"), 132, 48);
  EXPECT_EQ(best.size(), 48u);
  for (std::size_t i = 0; i < best.size(); ++i) {
    EXPECT_EQ(std::count(best.begin(), best.end(), best[i]), 1);
  }
  EXPECT_TRUE(best_pointwise_tilings({1, 1, 1}, limits_of("sm_90"), 132, 48).empty());  // no wave has a share of it
  EXPECT_FALSE(best_pointwise_tilings({17, 35, 33}, dcu(), 60, 48).empty());
}

TEST(Tiling, DepthwiseKeepsTheLimits) {
  for (const DeviceLimits& limits : known_limits()) {
    for (const int kernel : {1, 2, 3, 5, 7, 9}) {
      for (const int stride : {1, 2, 3}) {
        for (const DataType dtype : {DataType::float16, DataType::float32, DataType::float64}) {
          const DepthwiseExtents extents{dtype, kernel, stride, 28, 8, true, limits.wave == 32};
          for (const DepthwiseTiling& tiling : depthwise_tilings(extents, limits)) {
            const DepthwiseResources resources = resources_of(tiling, extents, limits);
            EXPECT_TRUE(resources.fit()) << printed(config_of(tiling));
            EXPECT_EQ(depthwise_tiling_of(config_of(tiling)), tiling);
          }
        }
      }
    }
    EXPECT_FALSE(depthwise_tilings({}, limits).empty()) << limits.architecture;
  }
}

/// Gradients: the memory of rows by hand, and all that is made keeps the limits.
TEST(Tiling, DepthwiseGradients) {
  // float16, 3x3 at stride 2: a row of grad_y is 2 + 1 columns of 4 channels, one of grad_x 2 * 2.
  DepthwiseExtents extents{DataType::float16, 3, 2, 28, 8, true, true, Direction::grad_input, true};
  const DepthwiseTiling tiling{4, 2, 2, 2};
  EXPECT_EQ(period_of(tiling, extents), 6);  // 2 rows of grad_y meet a row of strides, and 3 are asked for
  const int grads = 3 * 2 * (3 * 4), inputs = 3 * 2 * (4 * 4);  // rows, with what the gradient prologue reads
  EXPECT_EQ(resources_of(tiling, extents, limits_of("sm_90")).used_shared, 2 * 128 * (grads + inputs));
  extents.fused = extents.statistics = false;
  EXPECT_EQ(resources_of(tiling, extents, limits_of("sm_90")).used_shared, 2 * 128 * grads / 2);
  extents.copies_run_ahead = false;
  EXPECT_EQ(resources_of(tiling, extents, limits_of("gfx90a")).used_shared, 0);
  extents.statistics = true;
  EXPECT_EQ(resources_of(tiling, extents, limits_of("gfx90a")).used_shared, 4 * 128 * 2 * 4);  // two sums of a channel
  extents.direction = Direction::grad_weight;
  EXPECT_EQ(resources_of(tiling, extents, limits_of("gfx90a")).used_shared, 4 * 128 * 10 * 4);  // 9 taps and the bias
  extents.copies_run_ahead = true;
  EXPECT_EQ(resources_of({4, 2, 6, 1}, extents, limits_of("sm_90")).used_shared, 2 * 128 * 7 * 4 * (5 + 2));
  for (const DeviceLimits& limits : known_limits()) {
    for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
      for (const int kernel : {1, 2, 3, 5, 7, 9}) {
        for (const int stride : {1, 2, 3}) {
          for (const DataType dtype : {DataType::float16, DataType::float32, DataType::float64}) {
            const DepthwiseExtents each{dtype, kernel, stride, 28, 8, true, limits.wave == 32, direction, true};
            for (const DepthwiseTiling& one : depthwise_tilings(each, limits)) {
              EXPECT_TRUE(resources_of(one, each, limits).fit()) << printed(config_of(one));
            }
            const bool is_small = kernel <= 3 && dtype != DataType::float64;
            EXPECT_FALSE(is_small && depthwise_tilings(each, limits).empty()) << limits.architecture;
          }
        }
      }
    }
  }
}

/// Tiles of matrix products: memory by hand, words, and all that is made keeps the limits.
TEST(Tiling, MatrixTiles) {
  const MatrixTiling tiling{64, 32, 32, 1, 2};
  EXPECT_EQ(printed(config_of(tiling)), "columns=32 rows=64 groups=1 depth=32 block_n=2");
  EXPECT_EQ(matrix_tiling_of(config_of(tiling)), tiling);
  for (const char* wrong : {"", "rows=64", "rows=64 columns=32 depth=32 groups=1 block_n=2 ahead=1"}) {
    EXPECT_THROW(matrix_tiling_of(parsed(wrong)), InvalidArgument) << wrong;
  }
  // float16, channels_last, 3 stages: rows of positions, and the weight's rows of channels, padded by 8.
  MatrixExtents extents{
      .dtype = DataType::float16, .channels_inner = true, .copy_stages = 3, .direction = Direction::grad_input};
  const int sums = 4 * 64 * 36, grads = 2 * 64 * (32 + 8), weight = 2 * 32 * (32 + 8);
  EXPECT_EQ(resources_of(tiling, extents, limits_of("sm_90")).used_shared, sums + 3 * (grads + weight));
  extents.fused = extents.has_other = true;  // another tensor, and three coefficients for each value of k
  EXPECT_EQ(resources_of(tiling, extents, limits_of("sm_90")).used_shared,
            sums + 3 * (2 * grads + weight + 3 * 32 * 4));
  extents.direction = Direction::grad_weight;  // rows of outputs and channels, and theirs for good
  const int rows = 2 * 32 * (64 + 8), columns = 2 * 32 * (32 + 8), coefficients = 3 * 4 * (64 + 32);
  EXPECT_EQ(resources_of(tiling, extents, limits_of("sm_90")).used_shared,
            coefficients + sums + 3 * (2 * rows + columns));
  extents.copy_stages = 1;  // sums lie where the stage was
  EXPECT_EQ(resources_of(tiling, extents, limits_of("gfx90a")).used_shared,
            coefficients + std::max(sums, 2 * rows + columns));
  // Two squares of 16 columns of doubles side by side are a vector of matrix cores; values of k are neighbours else.
  extents = {.dtype = DataType::float64, .channels_inner = true, .direction = Direction::grad_input};
  for (const MatrixTiling& each : matrix_tilings(extents, limits_of("gfx90a"))) EXPECT_LE(each.columns, 64);
  for (const DeviceLimits& limits : known_limits()) {
    for (const Direction direction : {Direction::forward, Direction::grad_input, Direction::grad_weight}) {
      for (const DataType dtype : {DataType::float16, DataType::float32, DataType::float64}) {
        for (const bool yes : {false, true}) {
          extents = {dtype, false, yes, !yes, limits.wave == 32 ? 3 : 1, direction, yes, yes};
          const auto tilings = matrix_tilings(extents, limits);
          EXPECT_FALSE(tilings.empty()) << limits.architecture;
          for (const MatrixTiling& each : tilings) {
            EXPECT_TRUE(resources_of(each, extents, limits).fit()) << printed(config_of(each));
          }
        }
      }
    }
  }
}

TEST(Tiling, UnknownArchitecture) {
  EXPECT_STREQ(limits_of("sm_90a").architecture, "sm_90");
  EXPECT_STREQ(limits_of("gfx90a:sramecc+:xnack-").architecture, "gfx90a");
  try {
    limits_of("sm_61");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("\"sm_61\" are not known; there are those of gfx906"), std::string::npos);
  }
}

/// Shared memory by hand, of 16-bit elements: 96 channels in, two of four warps with other values of k.
TEST(FragmentTiling, SharedMemoryByHand) {
  const DeviceLimits& limits = limits_of("sm_80");
  FragmentExtents extents{.dtype = DataType::float16, .depth = 96, .channels = 576};
  // The weight stays: four stages of 16 bytes a thread and 8 positions; sums on their way; 128 values of k of 32
  // channels.
  const FragmentTiling stays{.rows = 32, .columns = 32, .parts = 2, .repeat_w = 2};
  EXPECT_EQ(resources_of(stays, extents, limits).used_shared, 4 * 2 * 128 * 16 + 16 * 4 * 128 + 128 * 2 * 32);
  // In stages of 64 values of k of 64 channels and 64 positions.
  const FragmentTiling streams{64, 64, 1, 3, 64, 2, 2, 1};
  EXPECT_EQ(resources_of(streams, extents, limits).used_shared, 3 * 64 * 2 * (64 + 64));
  extents.fused = true;  // scale, shift and the other tensor's scale
  EXPECT_EQ(resources_of(streams, extents, limits).used_shared, 3 * 64 * 2 * (64 + 64) + 3 * 4 * 128);
  extents.has_other = extents.is_input_gradient = true;  // and its rows, and room to put sums in order
  EXPECT_EQ(resources_of(streams, extents, limits).used_shared,
            3 * 64 * 2 * (64 + 2 * 64) + 4 * 32 * (32 + 4) * 4 + 3 * 4 * 128);
}

TEST(FragmentTiling, WordsAreReadBack) {
  const FragmentTiling tiling{64, 64, 1, 3, 64, 2, 2, 4};
  const Config config = config_of(tiling);
  EXPECT_TRUE(is_fragment_tiling(config));
  EXPECT_EQ(fragment_tiling_of(parsed(printed(config))), tiling);
  EXPECT_FALSE(is_fragment_tiling(config_of(PointwiseTiling{8, 64, 4, 2, 2, 2, 8})));
  EXPECT_FALSE(is_fragment_tiling(config_of(MatrixTiling())));
  EXPECT_THROW(fragment_tiling_of(parsed("rows=64 columns=64 repeat_w=2")), InvalidArgument);
  EXPECT_THROW(fragment_tiling_of(parsed(printed(config) + " wave_w=8")), InvalidArgument);
}

/// What is listed fits the device, with no room for one more block, and there is nothing twice.
TEST(FragmentTiling, AllFit) {
  const DeviceLimits& limits = limits_of("sm_86");
  for (const FragmentRows memory : {FragmentRows::whole, FragmentRows::packed}) {
    const FragmentExtents extents{
        .dtype = DataType::bfloat16, .memory = memory, .fused = true, .depth = 94, .channels = 114, .extras = 1};
    const std::vector<FragmentTiling> all = fragment_tilings(extents, limits);
    std::set<std::string> words;
    for (FragmentTiling tiling : all) {
      SCOPED_TRACE(printed(config_of(tiling)));
      EXPECT_TRUE(words.insert(printed(config_of(tiling))).second);
      EXPECT_TRUE(resources_of(tiling, extents, limits).fit());
      EXPECT_LE(tiling.block_n * tiling.warps(), limits.waves);
      EXPECT_EQ(tiling.depth > 0 || tiling.repeat_c > 1, tiling.depth > 0) << "a weight that stays is of one column";
      if (memory == FragmentRows::packed) EXPECT_EQ(tiling.depth, 0);
      if (++tiling.block_n > 8 || tiling.block_n * tiling.warps() > limits.waves) continue;
      EXPECT_FALSE(resources_of(tiling, extents, limits).fit());
    }
    EXPECT_GT(all.size(), 100u);
  }
  EXPECT_TRUE(fragment_tilings({.memory = FragmentRows::none, .depth = 96, .channels = 64}, limits).empty());
}

}  // namespace
}  // namespace fusedsc::tuning
