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

/// A sliding-channel convolution's weight to a pointwise one and back, behind other runs: windows that wrap around,
/// runs of several blocks, and one that is the first of a second launch.
TEST_P(CastGpu, Windows) {
  struct Case {
    std::int64_t channels, filters, groups;
    double overlap;
    int others;
  };
  Random random(22);
  for (const bool aligned : {false, true}) {
    align_tensors(aligned);
    for (const auto& [channels, filters, groups, overlap, others] :
         {Case{64, 96, 2, 0.5, 1}, Case{7, 10, 2, 0.25, 0}, Case{9, 14, 3, 0.33, 8}, Case{40, 300, 8, 0.5, 3},
          Case{5, 4, 1, 0.75, 2}}) {
      const SlidingChannels windows(channels, filters, groups, overlap);
      Tensor other(GetParam().dtype, {1, 1, 1, 77}), weight(GetParam().dtype, {1, 1, 1, filters * windows.width}),
          dense(GetParam().dtype, {1, 1, 1, filters * channels});
      for (Tensor* tensor : {&other, &weight, &dense}) {  // with numbers that no type rounds twice
        tensor->fill(Tensor(DataType::float16, tensor->sizes()).fill(random, -4, 4).values());
      }
      const Array dense_values = dense.values();
      Array expanded(dense.sizes()), gathered = weight.values();
      for (std::int64_t m = 0; m < filters; ++m) {
        for (std::int64_t k = 0; k < windows.width; ++k) {
          const std::int64_t own = m * windows.width + k, channel = m * channels + (m * windows.step + k) % channels;
          expanded.at(0, 0, 0, channel) = gathered.at(0, 0, 0, own);
          gathered.at(0, 0, 0, own) = dense_values.at(0, 0, 0, channel);
        }
      }
      for (const DataType to : {DataType::float32, DataType::float16}) {
        for (const bool gathers : {false, true}) {
          Tensor& from = gathers ? dense : weight;
          Tensor result(to, gathers ? weight.sizes() : dense.sizes()), expected(to, result.sizes());
          expected.fill(gathers ? gathered : expanded);
          std::vector<Tensor> copies;
          for (int i = 0; i < others; ++i) copies.emplace_back(to, other.sizes());
          CastArguments arguments{.windows = windows, .gathers = gathers};
          for (Tensor& copy : copies) arguments.runs.emplace_back(other, copy);
          arguments.runs.emplace_back(from, result);
          cast(arguments, {});
          memory().wait();
          EXPECT_TRUE(result.same_bits(expected)) << channels << " channels, to " << name_of(to);
          EXPECT_TRUE(result.surroundings_untouched());
          Tensor copied(to, other.sizes());
          copied.fill(other.values());
          for (const Tensor& copy : copies) EXPECT_TRUE(copy.same_bits(copied));
        }
      }
    }
  }
  align_tensors(false);
}

TEST_P(CastGpu, Reasons) {
  Tensor a(GetParam().dtype, {1, 1, 1, 4}), b(DataType::float32, {1, 1, 1, 5}), spread(DataType::float32, {1, 2, 1, 2});
  EXPECT_NE(why_not_cast({{{a, b}}}), "");
  EXPECT_NE(why_not_cast({{{spread, spread}}}), "");
  EXPECT_THROW(cast({{{a, b}}}, {}), Unsupported);
  const SlidingChannels windows(2, 2, 2, 0);
  EXPECT_NE(why_not_cast({{{b, a}}, windows}), "");
  EXPECT_NE(why_not_cast({{{a, b}}, windows, true}), "");
}

}  // namespace
}  // namespace fusedsc::reference
