#include "ops/each_target.h"
#include "ops/mistakes.h"
#include "ops/sparse_cases.h"

namespace fusedsc::reference {
namespace {

class Sparse : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, Sparse, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Sparse, Edges) { for_each_case(sparse_edges(GetParam()), verify_sparse); }
TEST_P(Sparse, Shares) { for_each_case(sparse_shares(GetParam()), verify_sparse); }
TEST_P(Sparse, Random) { for_each_case(random_sparse(GetParam()), verify_sparse); }

TEST_P(Sparse, EmptyBatch) { run_empty_sparse_batch(GetParam()); }

/// Whatever parts the rows are computed in: the same as the reference, for several images, strides and pooling.
void verify_configs(const SparseCase& problem) {
  SparseTensors tensors(problem);
  SparseArguments arguments = tensors.arguments(problem);
  for (const std::string& config : sparse_conv2d_configs(arguments, 2, 16)) {
    arguments.config = config;
    EXPECT_EQ(explain_sparse_conv2d(arguments).back().why, std::string("given")) << config;
    verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
  }
}
TEST_P(Sparse, EveryConfig) { for_some_cases(sparse_edges(GetParam()), verify_configs); }

class SparseTargets : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, SparseTargets, EachTarget::all(), EachTarget::name);

TEST_P(SparseTargets, Edges) {
  for (const DataType dtype : kDataTypes) for_some_cases(sparse_edges(dtype), verify_sparse);
}

TEST(SparseNonFinite, ReachesWhatADenseConvolutionWouldHaveItReach) {
  NonFiniteSparse(DataType::float32).expect_reaches_what_a_dense_convolution_would(/*threads=*/2);
}

/// The work of a 3 x 3 kernel on a map of five columns, as the lists have it that the kernel for CPUs multiplies.
SparseWork work_on(const std::vector<std::array<int, 5>>& map) {
  const auto height = static_cast<std::int64_t>(map.size());
  Tensor x(DataType::float32, {1, 1, height, 5});
  Array values({1, 1, height, 5});
  for_each_index(values.sizes, [&](auto n, auto c, auto h, auto w) {
    values.at(n, c, h, w).value = map[static_cast<std::size_t>(h)][static_cast<std::size_t>(w)];
  });
  x.fill(values);
  SparseArguments arguments;
  arguments.x = x;
  arguments.weight.sizes = {1, 1, 3, 3};
  arguments.window = {{3, 3}, {1, 1}, {1, 1}, {}};
  return sparse_work(arguments);
}

/// The example that seed 002 works out (Figs. 4 and 6): a row of three windows with three, three and four values. Of 27
/// products ten are left, of 24 additions seven.
TEST(SparseWorkOf, CountsWhatThePaperCounts) {
  const SparseWork work = work_on({{0, 0, 1, 0, 2}, {3, 0, 0, 5, 0}, {0, 4, 0, 0, 6}});
  EXPECT_EQ(work.dense_products, 27);
  EXPECT_EQ(work.dense_additions, 24);
  EXPECT_EQ(work.products, 10);
  EXPECT_EQ(work.additions, 7);
}

/// Three rows of windows: what is left of a value in none, two windows of one, and one of two.
TEST(SparseWorkOf, AWindowOfOneValueOrNoneAddsNothing) {
  const SparseWork work =
      work_on({{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 7, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 8, 0, 0, 0}});
  EXPECT_EQ(work.dense_products, 81);
  EXPECT_EQ(work.dense_additions, 72);
  EXPECT_EQ(work.products, 8);   // of the windows at columns 0 and 1: one, one and two of the three rows
  EXPECT_EQ(work.additions, 2);  // where there are two
}

/// There is one kernel for CPUs; a part may have any number of rows.
TEST(SparseConfigs, OfACpu) {
  const SparseCase problem{.x = {1, 8, 6, 6}, .outputs = 8, .window = {{3, 3}, {1, 1}, {1, 1}, {}}};
  SparseTensors tensors(problem);
  SparseArguments arguments = tensors.arguments(problem);
  EXPECT_EQ(sparse_conv2d_configs(arguments, 1, 8),
            (std::vector<std::string>{"cpu", "cpu/rows=2", "cpu/rows=1", "cpu/rows=4"}));
  for (const auto& [config, why] :
       {std::pair("", "prior"), {"cpu", "given"}, {"cpu/rows=2", "given"}, {"cpu/vectors=2", "prior"}}) {
    arguments.config = config;
    EXPECT_EQ(explain_sparse_conv2d(arguments).back().why, why) << config;
    verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
  }
  for (const char* config : {"gpu", "cpu/rooms=2", "cpu/rows=-1", "/rows=1"}) {
    arguments.config = config;
    EXPECT_THROW(run(kSparse, arguments), InvalidArgument) << config;
    EXPECT_THROW(explain_sparse_conv2d(arguments), InvalidArgument) << config;
  }
  arguments.config.clear();
  arguments.groups = 3;
  EXPECT_THROW(sparse_conv2d_configs(arguments, 1, 8), InvalidArgument);
}

TEST(SparseChecks, RefuseWrongArguments) {
  const SparseCase problem{.x = {1, 4, 6, 6}, .outputs = 8, .window = {{3, 3}, {1, 1}, {1, 1}, {}}};
  SparseTensors tensors(problem);
  const Mistakes<SparseArguments> kMistakes = {
      {"x", [](auto& a) { a.x.data = nullptr; }},
      {"weight", [](auto& a) { a.weight.data = nullptr; }},
      {"weight", [](auto& a) { a.weight.sizes[1] = 3; }},
      {"weight", [](auto& a) { a.weight.dtype = DataType::float16; }},
      {"groups", [](auto& a) { a.groups = 3; }},
      {"groups", [](auto& a) { a.groups = 0; }},
      {"packed",
       [](auto& a) {
         a.packed = {a.weight.data, DataType::float32, 7};
       }},
      {"bias", [](auto& a) { a.bias.size = 7; }},
      {"y", [](auto& a) { a.y.sizes[3] = 5; }},
      {"y", [](auto& a) { a.y.data = nullptr; }},
      {"kernel",
       [](auto& a) {
         a.window.kernel = {7, 7};
         a.weight.sizes = {8, 4, 7, 7};
       }},
      {"pool_size",
       [](auto& a) {
         a.pooling.size = {5, 1};
       }},
      {"pool_size",
       [](auto& a) {
         a.pooling.size = {0, 1};
       }},
      {"pool_stride",
       [](auto& a) {
         a.pooling.stride = {1, 0};
       }},
  };
  verify_mistakes(kSparse, tensors.arguments(problem), kMistakes);
}

}  // namespace
}  // namespace fusedsc::reference
