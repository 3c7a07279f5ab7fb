/// The depthwise GPU kernels, run by the host executor as a GPU of either wave size would run them.
#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/forward/depthwise_gpu.h"
#include "host_executor/executor.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {
namespace {

/// A depthwise problem that the GPU's implementations solve.
struct GpuGeometry : DepthwiseGeometry {
  static constexpr Operator<DepthwiseArguments> kForward{
      [](const DepthwiseArguments& a, const Execution& execution) { depthwise_gpu().run(a, execution); },
      [](const DepthwiseArguments& a, int threads) { return depthwise_gpu().workspace_bytes(a, threads); }};
  static constexpr Operator<DepthwiseBackwardArguments> kBackward{
      [](const DepthwiseBackwardArguments& a, const Execution& execution) {
        depthwise_backward_gpu().run(a, execution);
      },
      [](const DepthwiseBackwardArguments& a, int threads) {
        return depthwise_backward_gpu().workspace_bytes(a, threads);
      }};

  GpuGeometry(const DepthwiseGeometry& geometry)
      : DepthwiseGeometry(geometry) {}  // NOLINT(google-explicit-constructor)
};

GpuGeometry random_gpu(Random& random) { return random_depthwise(random); }

struct Target {
  DataType dtype;
  int wave_size;
};

void PrintTo(const Target& target, std::ostream* out) { *out << name_of(target.dtype) << "_wave" << target.wave_size; }

class DepthwiseGpu : public testing::TestWithParam<Target> {
 protected:
  /// Vectors of channels are loaded from aligned tensors only.
  void SetUp() override {
    gpu::executor::set_wave_size(GetParam().wave_size);
    align_tensors(true);
  }
  void TearDown() override { align_tensors(false); }

  static std::vector<GpuGeometry> edges() {
    const auto geometries = depthwise_edges();
    std::vector<GpuGeometry> edges(geometries.begin(), geometries.end());
    for (const std::int64_t stride : {1, 2}) {  // many strips for each thread; windows of the specialised kernels
      edges.emplace_back(DepthwiseGeometry{{3, 16, 31, 30}, centered(3, stride)});
      edges.emplace_back(DepthwiseGeometry{{2, 12, 23, 17}, centered(5, stride)});
      edges.emplace_back(DepthwiseGeometry{{1, 6, 19, 15}, centered(7, stride)});
      edges.emplace_back(DepthwiseGeometry{{1, 4, 15, 14}, {{3, 3}, {stride, stride}, {1, 1}, {0, 1, 0, 1}}});
      edges.emplace_back(DepthwiseGeometry{{1, 4, 15, 14}, {{3, 3}, {stride, stride}, {1, 1}, {2, 3, 4, 2}}});
    }
    return edges;
  }

  // For the seams.
  const GpuGeometry stride_one = DepthwiseGeometry{{2, 20, 8, 13}, centered(3)};
  const GpuGeometry multiplied = DepthwiseGeometry{{2, 19, 8, 13}, centered(3, 2), 2};
  const GpuGeometry stride_two = DepthwiseGeometry{{2, 8, 9, 10}, centered(3, 2)};
};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseGpu,
                         testing::Values(Target{DataType::float32, 32}, Target{DataType::float32, 64},
                                         Target{DataType::float64, 32}, Target{DataType::float64, 64},
                                         Target{DataType::float16, 32}, Target{DataType::float16, 64},
                                         Target{DataType::bfloat16, 32}, Target{DataType::bfloat16, 64}),
                         testing::PrintToStringParamName());

TEST_P(DepthwiseGpu, Edges) {
  for_each_case(forward_edge_cases(GetParam().dtype, edges()), verify_forward<GpuGeometry>);
}

TEST_P(DepthwiseGpu, Seams) {
  for_each_case(forward_seam_cases(GetParam().dtype, stride_one, multiplied), verify_forward<GpuGeometry>);
  for_each_case(forward_seam_cases(GetParam().dtype, stride_two, stride_one), verify_forward<GpuGeometry>);
}

TEST_P(DepthwiseGpu, Random) {
  align_tensors(false);
  for_each_case(forward_random_cases(GetParam().dtype, random_gpu), verify_forward<GpuGeometry>);
}

TEST_P(DepthwiseGpu, BackwardEdges) {
  for_each_case(backward_edge_cases(GetParam().dtype, edges()), verify_backward<GpuGeometry>);
}

TEST_P(DepthwiseGpu, BackwardSeams) {
  for_each_case(backward_seam_cases(GetParam().dtype, stride_one, multiplied), verify_backward<GpuGeometry>);
  for_each_case(backward_seam_cases(GetParam().dtype, stride_two, stride_one), verify_backward<GpuGeometry>);
}

TEST_P(DepthwiseGpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(backward_random_cases(GetParam().dtype, random_gpu), verify_backward<GpuGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
