#include "fusedsc/fused/batch_norm/running/batch_norm_running_cpu.h"

#include <cmath>

#include "fusedsc/common/cpu/float16.h"

namespace fusedsc {
namespace {

float widened(float value) { return value; }
double widened(double value) { return value; }
float widened(Float16 value) { return to_float(value); }
float widened(BFloat16 value) { return to_float(value); }

template <class T, class A>
T rounded(A value) {
  if constexpr (std::is_same_v<T, Float16>) return to_float16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(static_cast<float>(value));
  else return static_cast<T>(value);
}

/// Of T, from A's statistics: in float for types of 16 bits.
template <class T, class A>
void move_as(void* running, const void* batch, std::int64_t channels, double momentum) {
  using Wide = decltype(widened(T()));
  const auto weight = static_cast<Wide>(momentum);
  T* const to = static_cast<T*>(running);
  const A* const from = static_cast<const A*>(batch);
  for (std::int64_t c = 0; c < channels; ++c) {
    const Wide old = widened(to[c]), target = widened(rounded<T>(from[c]));
    // As torch.lerp, which is exact at both ends: the same bits as where PyTorch's operators do it.
    const Wide moved =
        std::abs(weight) < Wide(0.5) ? std::fma(weight, target - old, old) : std::fma(weight - 1, target - old, target);
    to[c] = rounded<T>(moved);
  }
}

template <class A>
void move(const ChannelVector& running, const A* batch, double momentum) {
  switch (running.dtype) {
    case DataType::float32: return move_as<float, A>(running.data, batch, running.size, momentum);
    case DataType::float64: return move_as<double, A>(running.data, batch, running.size, momentum);
    case DataType::float16: return move_as<Float16, A>(running.data, batch, running.size, momentum);
    case DataType::bfloat16: return move_as<BFloat16, A>(running.data, batch, running.size, momentum);
  }
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
