/// Running statistics: cases, and how they are verified, on the CPU or on a GPU.
#pragma once

#include <bit>
#include <optional>

#include "fusedsc/fused/batch_norm_running.h"
#include "ops/cases.h"
#include "ops/verify.h"

namespace fusedsc::reference {

/// A number of batches, in the memory of an element of eight bytes.
class Counter {
 public:
  explicit Counter(std::int64_t value) : memory_(DataType::float64, 1) {
    memory_.fill(Vector{Bounded{std::bit_cast<double>(value), 0}});
  }
  std::int64_t* address() { return static_cast<std::int64_t*>(memory_.vector().data); }
  std::int64_t value() const { return std::bit_cast<std::int64_t>(memory_.values()[0].value); }

 private:
  Channels memory_;
};

/// One BatchNorm; without a momentum its statistics are cumulative.
struct RunningTensors {
  std::int64_t channels;
  std::optional<double> momentum;
  Channels mean, variance;
  Counter counter;
  bool counts = true;

  RunningBatchNorm arguments() {
    return {channels, mean, variance, counts ? counter.address() : nullptr, momentum.value_or(0), !momentum};
  }
};

/// What becomes of running statistics: the batch's value is rounded to their type, then there are a difference, a
/// product and a sum.
inline Vector moved(const Channels& running, const Bounded* batch, double momentum) {
  Vector result = running.values();
  const DataType dtype = running.tensor().dtype();
  const double storage = Precision(dtype).storage, computed = Precision(dtype).accumulation;
  for (std::size_t c = 0; c < result.size(); ++c) {
    const double old = result[c].value, to = batch[c].value;
    const double magnitude = std::abs(old) + std::abs(to);
    result[c].value = old + momentum * (to - old);
    // The momentum is rounded, too.
    result[c].error = momentum * storage * std::abs(to) + 6 * computed * magnitude;
  }
  return result;
}

/// Several BatchNorms at once, after a batch of `dtype`, an accumulation type, or after an empty one.
inline void verify_running(DataType dtype, std::vector<RunningTensors>& norms, Random& random, bool empty_batch) {
  std::int64_t channels = 0;
  for (const RunningTensors& norm : norms) channels += norm.channels;
  Channels mean = Channels(dtype, channels).fill(random, -2, 2),
           variance = Channels(dtype, channels).fill(random, 0, 3);
  const Vector means = mean.values(), variances = variance.values();

  BatchNormRunningArguments arguments;
  arguments.device = memory().device;
  if (!empty_batch) {
    arguments.mean = mean;
    arguments.variance = variance;
  }
  struct Expected {
    Vector mean, variance;
    std::int64_t batches;
  };
  std::vector<Expected> expected;
  std::int64_t first = 0;
  for (RunningTensors& norm : norms) {
    arguments.batch_norms.push_back(norm.arguments());
    const std::int64_t batches = norm.counter.value() + (norm.counts ? 1 : 0);
    const double momentum =
        empty_batch ? 0 : norm.momentum.value_or(1 / static_cast<double>(std::max<std::int64_t>(batches, 1)));
    expected.push_back({moved(norm.mean, &means[static_cast<std::size_t>(first)], momentum),
                        moved(norm.variance, &variances[static_cast<std::size_t>(first)], momentum), batches});
    first += norm.channels;
  }
  update_running_statistics(arguments, {});
  memory().wait();
  for (std::size_t i = 0; i < norms.size(); ++i) {
    SCOPED_TRACE("BatchNorm " + std::to_string(i));
    EXPECT_TRUE(Output("mean", norms[i].mean, expected[i].mean).matches());
    EXPECT_TRUE(Output("variance", norms[i].variance, expected[i].variance).matches());
    EXPECT_EQ(norms[i].counter.value(), expected[i].batches);
  }
}

/// Types, momenta, numbers of channels and BatchNorms at random, with what is not tracked or not counted; more
/// BatchNorms than a launch takes.
inline void verify_random_running(DataType dtype) {
  Random random(51);
  for (int i = 0; i < 20; ++i) {
    std::vector<RunningTensors> norms;
    for (std::int64_t left = between(random, 1, 20); left > 0; --left) {
      const DataType type = one_of(random, kDataTypes);
      const std::int64_t channels = between(random, 1, coin(random) ? 40 : 700);
      const std::optional<double> momenta[] = {0.1, 0.0, 1.0, 0.9, std::nullopt};
      RunningTensors& norm = norms.emplace_back(RunningTensors{
          channels, momenta[random() % std::size(momenta)], Channels(type, channels).fill(random, -1, 1),
          Channels(type, channels).fill(random, 0, 4), Counter(static_cast<std::int64_t>(random() % 5))});
      norm.counts = !norm.momentum || coin(random);
    }
    SCOPED_TRACE(i);
    verify_running(dtype, norms, random, i % 5 == 4);
  }
}

}  // namespace fusedsc::reference
