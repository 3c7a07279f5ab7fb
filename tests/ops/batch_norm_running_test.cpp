#include "ops/batch_norm_running_cases.h"

#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

class BatchNormRunning : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(SumTypes, BatchNormRunning, testing::Values(DataType::float32, DataType::float64),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormRunning, AnyTypes) { verify_random_running(GetParam()); }

/// A BatchNorm that tracks nothing, between others.
TEST(BatchNormRunning, Untracked) {
  Channels mean = Channels(DataType::float32, 3).fill(Vector{{1, 0}, {2, 0}, {3, 0}}), variance = mean;
  Channels running = Channels(DataType::float32, 1).fill(Vector{{0, 0}}), other = running;
  BatchNormRunningArguments arguments;
  arguments.mean = mean;
  arguments.variance = variance;
  arguments.batch_norms = {{.channels = 2},
                           {.channels = 1, .mean = running, .variance = other, .batches = nullptr, .momentum = 0.5}};
  update_running_statistics(arguments, {});
  EXPECT_EQ(running.values()[0].value, 1.5);
}

TEST(BatchNormRunningChecks, SayWhatIsWrong) {
  constexpr Operator<BatchNormRunningArguments> kUpdate{
      update_running_statistics, [](const BatchNormRunningArguments&, int) { return std::size_t{0}; }};
  Random random(52);
  std::vector<RunningTensors> norms;
  BatchNormRunningArguments right;
  for (const std::int64_t channels : {8, 5}) {
    norms.push_back({channels, 0.1, Channels(DataType::float32, channels).fill(random, 1, 2),
                     Channels(DataType::float32, channels).fill(random, 1, 2), Counter(3)});
  }
  for (RunningTensors& norm : norms) right.batch_norms.push_back(norm.arguments());
  Channels mean = Channels(DataType::float32, 13).fill(random, 1, 2), variance = mean;
  right.mean = mean;
  right.variance = variance;
  update_running_statistics(right, {});
  verify_mistakes(
      kUpdate, right,
      {{"mean of BatchNorm 1", [](auto& a) { a.batch_norms[1].mean.size = 8; }},
       {"variance of BatchNorm 0", [](auto& a) { a.batch_norms[0].variance.device = Device::gpu; }},
       {"mean and variance of BatchNorm 1", [](auto& a) { a.batch_norms[1].mean = {}; }},
       {"channels of BatchNorm 0", [](auto& a) { a.batch_norms[0] = {.channels = -8}; }},
       {"batches of BatchNorm 0",
        [](auto& a) {
          a.batch_norms[0].is_cumulative = true;
          a.batch_norms[0].batches = nullptr;
        }},
       {"mean and variance", [](auto& a) { a.variance = {}; }},
       {"mean", [](auto& a) { a.mean.size = 12; }},
       {"variance", [](auto& a) { a.variance.dtype = DataType::float64; }},
       {"mean", [](auto& a) { a.mean.device = Device::gpu; }},
       {"running statistics", [](auto& a) { a.batch_norms[0].mean.data = const_cast<void*>(a.mean.data); }}});
}

}  // namespace
}  // namespace fusedsc::reference
