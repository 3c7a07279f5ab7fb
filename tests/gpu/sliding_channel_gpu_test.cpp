/// Sliding-channel convolution on GPUs: the kernels that lay weights out, with all that is around them; edges and
/// random problems by force.
#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_kernels.h"
#include "gpu/forced_suites.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

class SlidingChannelGpu : public OnGpu {
 protected:
  static std::vector<SlidingChannelGeometry> edges() {
    std::vector<SlidingChannelGeometry> edges;
    for (const std::int64_t groups : {1, 2, 3, 8}) {
      for (const double overlap : {0.0, 0.25, 0.5, 0.75}) {
        for (const std::int64_t channels : {8, 37, 40}) {
          for (const std::int64_t outputs : {1, 24, 40})
            edges.push_back({{1, channels, 3, 7}, outputs, groups, overlap});
        }
      }
    }
    edges.push_back({{1, 136, 5, 8}, 144, 2, 0.5});
    edges.push_back({{1, 256, 4, 4}, 64, 8, 0.5});   // windows of whole runs of 16 bytes
    edges.push_back({{2, 64, 3, 5}, 392, 4, 0.75});  // more than one tile of everything
    edges.push_back({{1, 300, 3, 3}, 24, 3, 0.33});  // more channels than a block has threads
    return edges;
  }

  static std::map<std::string, int> by_force(const std::vector<ForwardCase<SlidingChannelGeometry>>& cases) {
    return verify_forward_by_kernels("sliding_channel_conv2d.forward", sliding_channel_kernels(), cases);
  }
  static std::map<std::string, int> by_force(const std::vector<BackwardCase<SlidingChannelGeometry>>& cases) {
    return verify_backward_by_kernels("sliding_channel_conv2d.backward", sliding_channel_backward_kernels(), cases);
  }
  /// Each of them, at least; Hopper's where the GPU has them for this type.
  static void expect_ran(const std::map<std::string, int>& runs, const Names& hoppers) {
    expect_all_ran(runs, {"composed"});
    if (size_of(GetParam().dtype) == 2 && runs.size() > 1) expect_all_ran(runs, hoppers);
  }

  // For what is fused.
  const SlidingChannelGeometry even = {{2, 72, 6, 7}, 80, 2, 0.25};
  const SlidingChannelGeometry odd = {{2, 25, 6, 7}, 36, 3, 0.5};
};
INSTANTIATE_TEST_SUITE_P(Targets, SlidingChannelGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(SlidingChannelGpu, Edges) {
  expect_ran(by_force(forward_edge_cases(GetParam().dtype, edges())),
             {"hopper_resident", "hopper_sliced_k", "hopper_rows", "hopper_windows"});
}

TEST_P(SlidingChannelGpu, Fusion) {
  for_each_case(forward_fusion_cases(GetParam().dtype, even, odd), verify_forward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannelGpu, Random) {
  align_tensors(false);
  for_each_case(forward_random_cases(GetParam().dtype, random_sliding_channel), verify_forward<SlidingChannelGeometry>);
}

/// Likewise aligned, which more kernels can read, and each by force.
TEST_P(SlidingChannelGpu, RandomByForce) {
  expect_ran(by_force(forward_random_cases(GetParam().dtype, random_sliding_channel)), {});
  expect_ran(by_force(with_halves(backward_random_cases(GetParam().dtype, random_sliding_channel))), {});
}

TEST_P(SlidingChannelGpu, BackwardEdges) {
  expect_ran(by_force(with_halves(backward_edge_cases(GetParam().dtype, edges()))), {"hopper"});
}

TEST_P(SlidingChannelGpu, BackwardFusion) {
  for_each_case(backward_fusion_cases(GetParam().dtype, even, odd), verify_backward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannelGpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(backward_random_cases(GetParam().dtype, random_sliding_channel),
                verify_backward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannelGpu, Tf32) {
  if (GetParam().dtype != DataType::float32 || GetParam().wave_size != 32)
    GTEST_SKIP() << "for float32, at wave size 32";
  std::vector<SlidingChannelGeometry> geometries = {{{2, 72, 6, 14}, 80, 2, 0.25}, {{1, 37, 5, 7}, 40, 3, 0.5}};
  for (SlidingChannelGeometry& geometry : geometries) geometry.tf32 = true;
  for_each_case(forward_edge_cases(GetParam().dtype, geometries), verify_forward<SlidingChannelGeometry>);
  for_each_case(backward_edge_cases(GetParam().dtype, geometries), verify_backward<SlidingChannelGeometry>);
}

/// Maps of more positions for each multiprocessor than it takes for one pass to be worth it.
TEST_P(SlidingChannelGpu, BothGradientsOfLargeMaps) {
  if (size_of(GetParam().dtype) != 2 || GetParam().wave_size != 32) GTEST_SKIP() << "for 16 bits, at wave size 32";
  const BackwardFusion plain{.grad_bias = false};
  const std::int64_t images = gpu_multiprocessors() / 8 + 1;
  const std::vector<SlidingChannelGeometry> geometries = {{{images, 16, 32, 33}, 24, 2, 0.5},
                                                          {{images, 72, 32, 32}, 40, 4, 0.25},
                                                          {{2 * images, 24, 32, 17}, 136, 2, 0.75}};
  for (const SlidingChannelGeometry& geometry : geometries) {
    verify_backward<SlidingChannelGeometry>({GetParam().dtype, geometry, plain, Memories::all(Memory::channels_last)});
  }
}

/// Likewise, windows that share half of their channels with the next one: of steps of 2 channels and more, 4, 8 and 16
/// of them, several positions in a row, tiles of channels that windows go beyond, few filters, and many; as many
/// positions as kernels that go window by window leave.
TEST_P(SlidingChannelGpu, BothGradientsOfLargeMapsByHalves) {
  if (size_of(GetParam().dtype) != 2 || GetParam().wave_size != 32) GTEST_SKIP() << "for 16 bits, at wave size 32";
  const BackwardFusion plain{.grad_bias = false};
  const std::int64_t images = gpu_multiprocessors() / 8 + 1;
  const std::vector<SlidingChannelGeometry> geometries = {
      {{images, 32, 32, 33}, 64, 8, 0.5}, {{images, 32, 32, 32}, 24, 4, 0.5}, {{images, 32, 33, 31}, 64, 2, 0.5},
      {{images, 96, 32, 32}, 40, 2, 0.5}, {{images, 40, 32, 32}, 24, 2, 0.5}, {{images, 16, 32, 32}, 16, 8, 0.5},
      {{16, 64, 32, 32}, 128, 8, 0.5},    {{16, 64, 31, 33}, 144, 4, 0.5},    {{16, 128, 31, 33}, 48, 8, 0.5},
      {{16, 128, 32, 32}, 40, 2, 0.5}};
  for (const SlidingChannelGeometry& geometry : geometries) {
    verify_backward<SlidingChannelGeometry>({GetParam().dtype, geometry, plain, Memories::all(Memory::channels_last)});
  }
}

TEST_P(SlidingChannelGpu, EmptyBatch) {
  const SlidingChannelGeometry empty{{0, 24, 5, 7}, 40, 3, 0.5};
  verify_forward<SlidingChannelGeometry>({GetParam().dtype, empty, {}, Memories::all(Memory::channels_last)});
  verify_backward<SlidingChannelGeometry>({GetParam().dtype, empty, {}, Memories::all(Memory::channels_last)});
}

}  // namespace
}  // namespace fusedsc::reference
