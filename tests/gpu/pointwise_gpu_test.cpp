/// The pointwise GPU kernels, run by the host executor as a GPU of either wave size would run them.
#include "fusedsc/backward/pointwise_gpu.h"
#include "fusedsc/forward/pointwise_gpu.h"
#include "host_executor/executor.h"
#include "ops/backward_case.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

/// A pointwise problem that the GPU's implementations solve.
struct GpuGeometry : PointwiseGeometry {
  static constexpr Operator<PointwiseArguments> kForward{
      [](const PointwiseArguments& a, const Execution& execution) { pointwise_gpu().run(a, execution); },
      [](const PointwiseArguments& a, int threads) { return pointwise_gpu().workspace_bytes(a, threads); }};
  static constexpr Operator<PointwiseBackwardArguments> kBackward{
      [](const PointwiseBackwardArguments& a, const Execution& execution) {
        pointwise_backward_gpu().run(a, execution);
      },
      [](const PointwiseBackwardArguments& a, int threads) {
        return pointwise_backward_gpu().workspace_bytes(a, threads);
      }};

  GpuGeometry(const PointwiseGeometry& geometry)
      : PointwiseGeometry(geometry) {}  // NOLINT(google-explicit-constructor)
};

GpuGeometry random_gpu(Random& random) { return random_pointwise(random); }

struct Target {
  DataType dtype;
  int wave_size;
};

void PrintTo(const Target& target, std::ostream* out) { *out << name_of(target.dtype) << "_wave" << target.wave_size; }

class PointwiseGpu : public testing::TestWithParam<Target> {
 protected:
  /// Runs of elements are copied from aligned tensors only.
  void SetUp() override {
    gpu::executor::set_wave_size(GetParam().wave_size);
    align_tensors(true);
  }
  void TearDown() override { align_tensors(false); }

  static std::vector<GpuGeometry> edges() {
    const auto geometries = pointwise_edges();
    std::vector<GpuGeometry> edges(geometries.begin(), geometries.end());
    for (const std::int64_t channels : {8, 72, 136}) {  // several tiles of everything, in runs of any length
      edges.emplace_back(PointwiseGeometry{{2, channels, 14, 14}, 144});
      edges.emplace_back(PointwiseGeometry{{2, 144, 12, 12}, channels});
      edges.emplace_back(PointwiseGeometry{{1, channels, 16, 16}, 40, 8});
    }
    return edges;
  }

  // For the seams.
  const GpuGeometry dense = PointwiseGeometry{{2, 72, 12, 14}, 80}, grouped = PointwiseGeometry{{2, 24, 6, 7}, 36, 3};
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseGpu,
                         testing::Values(Target{DataType::float32, 32}, Target{DataType::float32, 64},
                                         Target{DataType::float64, 32}, Target{DataType::float64, 64},
                                         Target{DataType::float16, 32}, Target{DataType::float16, 64},
                                         Target{DataType::bfloat16, 32}, Target{DataType::bfloat16, 64}),
                         testing::PrintToStringParamName());

TEST_P(PointwiseGpu, Edges) {
  for_each_case(forward_edge_cases(GetParam().dtype, edges()), verify_forward<GpuGeometry>);
}

TEST_P(PointwiseGpu, Seams) {
  for_each_case(forward_seam_cases(GetParam().dtype, dense, grouped), verify_forward<GpuGeometry>);
}

TEST_P(PointwiseGpu, Random) {
  align_tensors(false);
  for_each_case(forward_random_cases(GetParam().dtype, random_gpu), verify_forward<GpuGeometry>);
}

TEST_P(PointwiseGpu, BackwardEdges) {
  for_each_case(backward_edge_cases(GetParam().dtype, edges()), verify_backward<GpuGeometry>);
}

TEST_P(PointwiseGpu, BackwardSeams) {
  for_each_case(backward_seam_cases(GetParam().dtype, dense, grouped), verify_backward<GpuGeometry>);
}

TEST_P(PointwiseGpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(backward_random_cases(GetParam().dtype, random_gpu), verify_backward<GpuGeometry>);
}

TEST_P(PointwiseGpu, EmptyBatch) {
  const GpuGeometry empty = PointwiseGeometry{{0, 24, 5, 7}, 40};
  verify_forward<GpuGeometry>({GetParam().dtype, empty, {}, Memories::all(Memory::channels_last)});
  verify_backward<GpuGeometry>({GetParam().dtype, empty, {}, Memories::all(Memory::channels_last)});
}

}  // namespace
}  // namespace fusedsc::reference
