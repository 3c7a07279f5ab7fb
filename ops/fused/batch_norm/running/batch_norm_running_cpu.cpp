#include "fusedsc/fused/batch_norm/running/batch_norm_running_cpu.h"

#include <cmath>

#include "fusedsc/common/cpu/elements.h"

namespace fusedsc {
namespace {

/// Of T, from A's statistics: in float for types of 16 bits.
template <class T, class A>
void move_as(void* running, const void* batch, std::int64_t channels, double momentum) {
  const auto weight = static_cast<Wide<T>>(momentum);
  T* const to = static_cast<T*>(running);
  const A* const from = static_cast<const A*>(batch);
  for (std::int64_t c = 0; c < channels; ++c) {
    T rounded;
    narrow(static_cast<Wide<T>>(from[c]), rounded);
    const Wide<T> old = widened(to[c]), target = widened(rounded);
    // As torch.lerp, which is exact at both ends: the same bits as where PyTorch's operators do it.
    narrow(std::abs(weight) < Wide<T>(0.5) ? std::fma(weight, target - old, old)
                                           : std::fma(weight - 1, target - old, target),
           to[c]);
  }
}

template <class A>
void move(const ChannelVector& running, const A* batch, double momentum) {
  with_type(running.dtype, [&]<class T>(T) { move_as<T, A>(running.data, batch, running.size, momentum); });
}

template <class A>
void update(const BatchNormRunningArguments& arguments) {
  const A *mean = static_cast<const A*>(arguments.mean.data),
          *variance = static_cast<const A*>(arguments.variance.data);
  for (const RunningBatchNorm& norm : arguments.batch_norms) {
    double momentum = norm.momentum;
    if (norm.batches != nullptr) {
      ++*norm.batches;
      if (norm.is_cumulative) momentum = 1 / static_cast<double>(*norm.batches);
    }
    if (mean == nullptr) continue;
    if (norm.mean) {
      move(norm.mean, mean, momentum);
      move(norm.variance, variance, momentum);
    }
    mean += norm.channels;
    variance += norm.channels;
  }
}

void run(const BatchNormRunningArguments& arguments, const Execution&) {
  arguments.mean.dtype == DataType::float64 ? update<double>(arguments) : update<float>(arguments);
}

std::string why_not(const BatchNormRunningArguments& arguments) { return needs_device(Device::cpu, arguments.device); }

}  // namespace

Implementation<BatchNormRunningArguments> batch_norm_running_cpu() {
  return {"cpu", why_not, plan_of_nothing<BatchNormRunningArguments, run>};
}

}  // namespace fusedsc
