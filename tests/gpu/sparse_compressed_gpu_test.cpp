/// Convolutions from and to compressed maps, on GPUs: the cases of the CPU's tests, with configs that are far apart.
#include "fusedsc/forward/sparse/sparse_kernels.h"
#include "gpu/forced.h"
#include "gpu/gpu_under_test.h"
#include "ops/sparse_compressed_cases.h"

namespace fusedsc::reference {
namespace {

class SparseCompressedGpu : public OnGpu {
 protected:
  static DataType dtype() { return GetParam().dtype; }

  /// With configs from all over, one of which at least has blocks share the channels out.
  static void verify_configs(const SparseCase& problem, std::size_t number, std::size_t most) {
    SparseTensors tensors(problem);
    const SparseArguments arguments = tensors.arguments(problem);
    for (const std::string& choice : some_choices(gpu::sparse_lists(), arguments, number, most)) {
      SCOPED_TRACE(choice);
      const Forced forced("sparse_conv2d.forward", choice);
      verify_compressed(arguments, tensors.x, tensors.y, tensors.expected);
      if (HasFailure()) return;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SparseCompressedGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(SparseCompressedGpu, Edges) { for_each_case(compressed_edges(dtype()), verify_compressed_case); }

TEST_P(SparseCompressedGpu, Shares) { for_each_case(sparse_shares(dtype()), verify_compressed_case); }

TEST_P(SparseCompressedGpu, Unaligned) {
  align_tensors(false);
  std::vector<SparseCase> cases = random_sparse(dtype());
  cases.resize(15);
  for_each_case(cases, verify_compressed_case);
}

TEST_P(SparseCompressedGpu, Configs) {
  const std::vector<SparseCase> cases = compressed_edges(dtype());
  for (std::size_t i = 0; i < 8; ++i) verify_configs(cases[i], i, 3);
}

/// Blocks share the channels out, and the second pass writes the lists.
TEST_P(SparseCompressedGpu, Splits) {
  for (const bool pools : {false, true}) {
    const SparseCase problem{.dtype = dtype(),
                             .x = {2, 80, 6, 5},
                             .outputs = 70,
                             .window = kSame3x3,
                             .pooling = pools ? MaxPooling{{2, 2}, {2, 2}} : MaxPooling{},
                             .activation = Activation::relu};
    SparseTensors tensors(problem);
    const Forced forced("sparse_conv2d.forward", "gpu_lists/channels=32 rows=2 columns=2 splits=4 warps=4");
    verify_compressed(tensors.arguments(problem), tensors.x, tensors.y, tensors.expected);
  }
}

/// A layer's own config is that of calls with dense maps and with compressed ones.
TEST_P(SparseCompressedGpu, GivenConfigs) {
  const SparseCase problem{.dtype = dtype(), .x = {1, 40, 9, 8}, .outputs = 70, .window = kSame3x3, .packed = true};
  SparseTensors tensors(problem);
  SparseArguments arguments = tensors.arguments(problem);
  const std::vector<std::string> configs = sparse_conv2d_configs(arguments, 1, 4);
  ASSERT_EQ(configs.size(), 4u);
  for (const std::string& config : configs) {
    SCOPED_TRACE(config);
    arguments.config = config;
    const tuning::Trace trace;
    verify_compressed(arguments, tensors.x, tensors.y, tensors.expected);
    expect_ran(trace, "sparse_conv2d.forward", config, "given");
  }
}

TEST_P(SparseCompressedGpu, NonFinite) { verify_non_finite_compressed(dtype()); }
TEST_P(SparseCompressedGpu, AnyBytes) { run_with_any_bytes(dtype()); }

}  // namespace
}  // namespace fusedsc::reference
