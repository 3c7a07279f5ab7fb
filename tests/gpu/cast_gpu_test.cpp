/// Casts of several runs of elements by one launch.
#include "fusedsc/fused/cast.h"

#include "fusedsc/common/status.h"
#include "gpu/gpu_under_test.h"

namespace fusedsc::reference {
namespace {

class CastGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, CastGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

/// More runs than a launch takes; empty ones, short ones and those of several blocks.
TEST_P(CastGpu, Runs) {
  Random random(21);
  for (const DataType to : {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16}) {
    std::vector<Tensor> sources, results;
    for (const std::int64_t size : {1, 9, 1024, 1025, 5000, 256, 2048, 3, 77, 1500}) {
      sources.emplace_back(GetParam().dtype, Sizes{1, 1, 1, size}).fill(random, -70000, 70000);
      results.emplace_back(to, Sizes{1, 1, 1, size});
    }
    CastArguments arguments;
    for (std::size_t i = 0; i < sources.size(); ++i) arguments.runs.emplace_back(sources[i], results[i]);
    cast(arguments, {});
    memory().wait();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      Tensor expected(to, sources[i].sizes());
      expected.fill(sources[i].values());
      EXPECT_TRUE(results[i].same_bits(expected)) << "to " << name_of(to) << ", run " << i;
      EXPECT_TRUE(results[i].surroundings_untouched());
    }
  }
}

TEST_P(CastGpu, Reasons) {
  Tensor a(GetParam().dtype, {1, 1, 1, 4}), b(DataType::float32, {1, 1, 1, 5}), spread(DataType::float32, {1, 2, 1, 2});
  EXPECT_NE(why_not_cast({{{a, b}}}), "");
  EXPECT_NE(why_not_cast({{{spread, spread}}}), "");
  EXPECT_THROW(cast({{{a, b}}}, {}), Unsupported);
}

}  // namespace
}  // namespace fusedsc::reference
