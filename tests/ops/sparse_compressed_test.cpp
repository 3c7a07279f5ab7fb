#include "ops/each_target.h"
#include "ops/mistakes.h"
#include "ops/sparse_compressed_cases.h"

namespace fusedsc::reference {
namespace {

class SparseCompressed : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, SparseCompressed, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SparseCompressed, Edges) { for_each_case(compressed_edges(GetParam()), verify_compressed_case); }
TEST_P(SparseCompressed, Shares) { for_each_case(sparse_shares(GetParam()), verify_compressed_case); }
TEST_P(SparseCompressed, Random) { for_each_case(random_sparse(GetParam()), verify_compressed_case); }
TEST_P(SparseCompressed, NonFinite) { verify_non_finite_compressed(GetParam()); }
TEST_P(SparseCompressed, AnyBytes) { run_with_any_bytes(GetParam()); }

class SparseCompressedTargets : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, SparseCompressedTargets, EachTarget::all(), EachTarget::name);

TEST_P(SparseCompressedTargets, Edges) {
  for (const DataType dtype : kDataTypes) for_each_case(compressed_edges(dtype), verify_compressed_case);
}

/// The example that seed 002 works out (Figs. 4 and 6), from one layer to the next: the map of 5 x 5 comes out of a
/// convolution by 1 as a compressed one, and the next convolution of 3 x 3 multiplies its values only.
TEST(SparseCompressedMap, WorkedExample) {
  const std::array<std::array<double, 5>, 3> kMap = {{{0, 0, 1, 0, 2}, {3, 0, 0, 5, 0}, {0, 4, 0, 0, 6}}};
  Array map({1, 1, 3, 5});
  for_each_index(map.sizes, [&](auto, auto, auto h, auto w) {
    map.at(0, 0, h, w).value = kMap[static_cast<std::size_t>(h)][static_cast<std::size_t>(w)];
  });
  const SparseCase first{.x = map.sizes, .bias = false}, second{.x = map.sizes, .window = {{3, 3}}, .bias = false};
  SparseTensors of_first(first), of_second(second);
  of_first.x.fill(map);
  Array one({1, 1, 1, 1}), nine({1, 1, 3, 3});
  one.elements[0].value = 1;
  for (std::size_t i = 0; i < 9; ++i) nine.elements[i].value = static_cast<double>(i + 1);
  of_first.weight.fill(one);
  of_second.weight.fill(nine);
  CompressedMap between(DataType::float32, map.sizes);
  run(kSparse, writing(of_first.arguments(first), between));
  std::int64_t given = 0;
  for (const Bounded& value : between.decoded().elements) given += value.value != 0;
  EXPECT_EQ(given, 6);
  run(kSparse, reading(of_second.arguments(second), between));
  const Array y = of_second.y.values();
  EXPECT_EQ(y.at(0, 0, 0, 0).value, 1 * 3 + 3 * 4 + 4 * 8);
  EXPECT_EQ(y.at(0, 0, 0, 1).value, 1 * 2 + 5 * 6 + 4 * 7);
  EXPECT_EQ(y.at(0, 0, 0, 2).value, 1 * 1 + 2 * 3 + 5 * 5 + 6 * 9);
}

TEST(SparseCompressedChecks, RefuseWrongArguments) {
  const SparseCase problem{.x = {1, 48, 6, 6}, .outputs = 96, .window = {{3, 3}}};
  SparseTensors tensors(problem);
  CompressedMap x(DataType::float32, problem.x), y(DataType::float32, tensors.y.sizes());
  const Mistakes<SparseArguments> kMistakes = {
      {"x", [](auto& a) { a.x.strides[1] = 2; }},
      {"x_channels", [](auto& a) { a.x_channels.size -= 1; }},
      {"x_channels", [](auto& a) { a.x_channels = {}; }},
      {"x_counts", [](auto& a) { a.x_counts = {}; }},
      {"x_counts", [](auto& a) { a.x_counts.data = static_cast<const char*>(a.x_counts.data) + 1; }},
      {"y", [](auto& a) { a.y.strides[3] += 8; }},
      {"y_channels", [](auto& a) { a.y_channels.dtype = DataType::float64; }},
      {"y_counts", [](auto& a) { a.y_counts.size = 1; }},
      {"y_channels", [](auto& a) { a.y_channels.data = inside(a.x_channels.data); }},
      {"groups",
       [](auto& a) {
         a.groups = 4;  // of 12 channels
         a.weight.sizes[1] = 12;
       }},
      {"groups",
       [](auto& a) {
         a.groups = 2;  // to 48 channels each
         a.weight.sizes[1] = 24;
       }},
  };
  verify_mistakes(kSparse, writing(reading(tensors.arguments(problem), x), y), kMistakes);
}

}  // namespace
}  // namespace fusedsc::reference
