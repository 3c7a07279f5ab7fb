/// Convolution that skips zeros, on GPUs: the cases of the CPU's tests, each kernel with configs that are far apart,
/// and how much it multiplies.
#include "fusedsc/forward/sparse/sparse_kernels.h"
#include "gpu/forced.h"
#include "gpu/gpu_under_test.h"
#include "ops/sparse_cases.h"

namespace fusedsc::reference {
namespace {

constexpr const char* kRole = "sparse_conv2d.forward";

class SparseGpu : public OnGpu {
 protected:
  static DataType dtype() { return GetParam().dtype; }
  static std::vector<tuning::Kernel<SparseArguments>> kernels() { return {gpu::sparse_lists()}; }

  /// With some configs, others for each problem.
  static void verify_configs(const SparseCase& problem, std::size_t number, std::size_t most) {
    SparseTensors tensors(problem);
    const SparseArguments arguments = tensors.arguments(problem);
    const std::vector<tuning::Kernel<SparseArguments>> all = kernels();
    for (const auto& kernel : able(std::span<const tuning::Kernel<SparseArguments>>(all), arguments)) {
      for (const std::string& choice : some_choices(kernel, arguments, number, most)) {
        verify_by(kRole, choice, [&] { verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}}); });
        if (HasFailure()) return;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SparseGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(SparseGpu, Edges) { for_each_case(sparse_edges(dtype()), verify_sparse); }
TEST_P(SparseGpu, Shares) { for_each_case(sparse_shares(dtype()), verify_sparse); }

TEST_P(SparseGpu, Random) {
  align_tensors(false);
  for_each_case(random_sparse(dtype()), verify_sparse);
}

TEST_P(SparseGpu, Configs) {
  std::size_t number = 0;
  for_each_case(sparse_edges(dtype()), [&](const SparseCase& problem) {
    if (++number % 3 == 0) verify_configs(problem, number, 2);
  });
}

TEST_P(SparseGpu, EmptyBatch) { run_empty_sparse_batch(dtype()); }

/// More under a window than fits shared memory at once, with all channels of a split.
TEST_P(SparseGpu, ManyChannels) {
  const SparseCase problem{
      .dtype = dtype(), .x = {1, 700, 4, 5}, .outputs = 33, .window = kSame3x3, .zeros = 0.9, .packed = true};
  verify_configs(problem, 0, 6);
}

/// Windows that do not fit a block are pooled in a second pass.
TEST_P(SparseGpu, LargePooling) {
  const SparseCase problem{.dtype = dtype(),
                           .x = {2, 9, 20, 19},
                           .outputs = 35,
                           .window = kSame3x3,
                           .pooling = {{18, 17}, {2, 1}},
                           .activation = Activation::relu};
  verify_sparse(problem);
}

TEST_P(SparseGpu, NonFiniteReachesWhatADenseConvolutionWouldHaveItReach) {
  NonFiniteSparse problem(dtype());
  const std::vector<tuning::Kernel<SparseArguments>> all = kernels();
  for (const std::string& choice : some_choices(all.front(), problem.arguments(), 0, 5)) {
    SCOPED_TRACE(choice);
    const Forced forced(kRole, choice);
    problem.expect_reaches_what_a_dense_convolution_would(/*threads=*/1);
  }
}

/// What of a weight is not finite makes no NaN of a zero, whichever the row.
TEST_P(SparseGpu, ZerosAreNotMultiplied) {
  const SparseCase problem{
      .dtype = dtype(), .x = {1, 20, 5, 5}, .outputs = 40, .window = kSame3x3, .zeros = 0.97, .bias = false};
  SparseTensors tensors(problem);
  Array x = tensors.x.values(), weight = tensors.weight.values();
  for_each_index(weight.sizes, [&](auto m, auto c, auto i, auto j) {
    if (c % 2 == 0) weight.at(m, c, i, j).value = INFINITY;
  });
  for_each_index(x.sizes, [&](auto n, auto c, auto h, auto w) {
    if (c % 2 == 0) x.at(n, c, h, w).value = (c + h + w) % 2 == 0 ? 0.0 : -0.0;
  });
  tensors.weight.fill(weight);
  tensors.x.fill(x);
  run(kSparse, tensors.arguments(problem));
  const Array y = tensors.y.values();
  for_each_index(y.sizes, [&](auto n, auto m, auto h, auto w) {
    EXPECT_TRUE(std::isfinite(y.at(n, m, h, w).value)) << m << ' ' << h << ' ' << w;
  });
}

TEST_P(SparseGpu, ExplainSaysWhatRuns) {
  for (const SparseCase& problem : sparse_shares(dtype())) {
    SparseTensors tensors(problem);
    const SparseArguments arguments = tensors.arguments(problem);
    const std::string choice =
        expect_explained(kRole, explain_sparse_conv2d(arguments), [&] { run(kSparse, arguments); });
    EXPECT_TRUE(choice.starts_with("gpu_lists/")) << choice;
  }
}

TEST_P(SparseGpu, ForceSaysWhatItCannot) {
  const SparseCase problem{.dtype = dtype(), .x = {1, 16, 6, 6}, .outputs = 8, .window = {{3, 3}, {1, 1}, {1, 1}, {}}};
  SparseTensors tensors(problem);
  const SparseArguments arguments = tensors.arguments(problem);
  for (const char* choice : {"cpu", "gpu_lists/channels=48 rows=1 columns=1 splits=1 warps=4",
                             "gpu_lists/channels=32 rows=1 columns=1 splits=3 warps=4",
                             "gpu_lists/channels=32 rows=1 columns=1 splits=1 warps=17", "gpu_lists/box=3",
                             "gpu_lists/channels=32 rows=99 columns=99 splits=1 warps=4"}) {
    const Forced forced(kRole, choice);
    EXPECT_THROW(run(kSparse, arguments), Unsupported) << choice;
  }
  verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
}

/// Of a problem with and without pooling, as ECR and PECR are.
std::vector<SparseCase> given_cases(DataType dtype) {
  SparseCase plain{.dtype = dtype, .x = {2, 40, 14, 14}, .outputs = 70, .window = kSame3x3, .zeros = 0.65};
  plain.activation = Activation::relu;
  plain.packed = true;
  SparseCase pooled = plain;
  pooled.pooling = {{2, 2}, {2, 2}};
  return {plain, pooled};
}

/// The config that a call asks for is what runs, for this call alone, and the result is right.
TEST_P(SparseGpu, GivenConfigs) {
  for (const SparseCase& problem : given_cases(dtype())) {
    SparseTensors tensors(problem);
    SparseArguments arguments = tensors.arguments(problem);
    const std::string prior =
        expect_explained(kRole, explain_sparse_conv2d(arguments), [&] { run(kSparse, arguments); });
    const std::vector<std::string> configs = sparse_conv2d_configs(arguments, 1, 4);
    ASSERT_EQ(configs.size(), 4u);
    EXPECT_EQ(configs[0], prior);
    EXPECT_EQ(sparse_conv2d_configs(arguments, 1, 1), std::vector{prior});
    for (const std::string& config : configs) {
      SCOPED_TRACE(config);
      arguments.config = config;
      const tuning::Trace trace;
      verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
      expect_ran(trace, kRole, config, "given");
      const Candidate taken = explain_sparse_conv2d(arguments).at(0);
      EXPECT_EQ(taken.implementation + '/' + taken.config, config);
      EXPECT_EQ(taken.why, "given");
      EXPECT_EQ(sparse_conv2d_configs(arguments, 1, 4), configs) << "they depend on what is given";
    }
    arguments.config.clear();
    EXPECT_EQ(expect_explained(kRole, explain_sparse_conv2d(arguments), [&] { run(kSparse, arguments); }), prior)
        << "another call of the same problem has the config, too";
    arguments.config = "gpu_lists";  // whatever config the registry would take it with
    const tuning::Trace trace;
    verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
    expect_ran(trace, kRole, prior, "given");
  }
}

/// What is given but does not fit a problem is passed over, as a map of another size may come to the same layer.
TEST_P(SparseGpu, GivenConfigsThatDoNotFit) {
  SparseCase problem = given_cases(dtype()).front();
  problem.x = {1, 40, 5, 6};
  SparseTensors tensors(problem);
  SparseArguments arguments = tensors.arguments(problem);
  const std::string prior = expect_explained(kRole, explain_sparse_conv2d(arguments), [&] { run(kSparse, arguments); });
  for (const char* config : {"cpu", "gpu_lists/channels=32 rows=14 columns=14 splits=1 warps=16", "gpu_lists/box=3",
                             "gpu_lists/channels=48 rows=1 columns=1 splits=1 warps=4"}) {
    SCOPED_TRACE(config);
    arguments.config = config;
    const tuning::Trace trace;
    verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
    expect_ran(trace, kRole, prior, "prior");
  }
}

TEST_P(SparseGpu, GivenConfigsThatAreNone) {
  const SparseCase problem = given_cases(dtype()).front();
  SparseTensors tensors(problem);
  SparseArguments arguments = tensors.arguments(problem);
  const auto message_of = [&](const char* config) -> std::string {
    arguments.config = config;
    try {
      run(kSparse, arguments);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(message_of("gpu_list/rows=1"),
            "config: sparse_conv2d.forward has no kernel \"gpu_list\"; there are gpu_lists, cpu");
  EXPECT_TRUE(message_of("gpu_lists/rooms=1").starts_with("config: \"rooms\" is no word of one; there are "));
  EXPECT_TRUE(message_of("gpu_lists/rows=much").starts_with("config: \"rows=much\""));
}

/// What is forced comes before what is given; and then there is nothing to try.
TEST_P(SparseGpu, ForceComesBeforeWhatIsGiven) {
  const SparseCase problem = given_cases(dtype()).front();
  SparseTensors tensors(problem);
  SparseArguments arguments = tensors.arguments(problem);
  const std::vector<std::string> configs = sparse_conv2d_configs(arguments, 1, 3);
  ASSERT_EQ(configs.size(), 3u);
  arguments.config = configs[1];
  verify_by(kRole, configs[2], [&] {
    verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
    EXPECT_EQ(sparse_conv2d_configs(arguments, 1, 3), std::vector<std::string>());
  });
}

}  // namespace
}  // namespace fusedsc::reference
