/// Running statistics moved on a GPU: a block per BatchNorm.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/fused/batch_norm_running.h"

namespace fusedsc::gpu {

inline constexpr int kRunningThreads = 256;
inline constexpr int kMostRunning = 8;  ///< BatchNorms of a launch

struct BatchNormRunningParameters {
  struct One {
    void *mean = nullptr, *variance = nullptr;
    DataType mean_type = DataType::float32, variance_type = DataType::float32;
    std::int64_t* batches = nullptr;
    double momentum = 0;
    bool is_cumulative = false;
    int channels = 0;
    int first = 0;  ///< of its channels among all
  };
  One batch_norms[kMostRunning];
  const void *mean = nullptr, *variance = nullptr;  ///< the batch's, of all; or null
};

/// A momentum, and how many batches there are if it depends on them.
template <class A>
FUSEDSC_DEVICE A momentum_of(const BatchNormRunningParameters::One& norm, std::int64_t batches) {
  return norm.is_cumulative ? A(1) / static_cast<A>(batches) : static_cast<A>(norm.momentum);
}

/// Of T, in Wide, from A's statistics. As torch.lerp: exact at both ends.
template <class T, class Wide, class A>
FUSEDSC_DEVICE void move_running(void* running, const A* batch, const BatchNormRunningParameters::One& norm,
                                 std::int64_t batches) {
  const Wide weight = momentum_of<Wide>(norm, batches);
  T* const to = static_cast<T*>(running);
  for (int c = thread_index(); c < norm.channels; c += kRunningThreads) {
    T rounded;
    from_accumulator(static_cast<Wide>(batch[norm.first + c]), rounded);
    const Wide old = to_accumulator(to[c]), target = to_accumulator(rounded), difference = target - old;
    from_accumulator(weight < Wide(0.5) ? old + weight * difference : target - difference * (Wide(1) - weight), to[c]);
  }
}

template <class A>
FUSEDSC_DEVICE void move_running(void* running, DataType type, const A* batch,
                                 const BatchNormRunningParameters::One& norm, std::int64_t batches) {
  switch (type) {
    case DataType::float64: return move_running<double, double>(running, batch, norm, batches);
    case DataType::float32: return move_running<float, float>(running, batch, norm, batches);
    case DataType::float16: return move_running<Float16, float>(running, batch, norm, batches);
    default: return move_running<BFloat16, float>(running, batch, norm, batches);
  }
}

template <class A>
FUSEDSC_DEVICE void update_running_statistics(const BatchNormRunningParameters& p) {
  const BatchNormRunningParameters::One& norm = p.batch_norms[block_index()];
  const std::int64_t batches = norm.batches != nullptr ? *norm.batches + 1 : 0;
  block_barrier();  // all have read it
  if (norm.batches != nullptr && thread_index() == 0) *norm.batches = batches;
  if (p.mean == nullptr || norm.mean == nullptr) return;
  move_running(norm.mean, norm.mean_type, static_cast<const A*>(p.mean), norm, batches);
  move_running(norm.variance, norm.variance_type, static_cast<const A*>(p.variance), norm, batches);
}

}  // namespace fusedsc::gpu
