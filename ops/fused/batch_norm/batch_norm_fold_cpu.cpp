#include "fusedsc/fused/batch_norm/batch_norm_fold_cpu.h"

#include <algorithm>
#include <cmath>

#include "fusedsc/common/cpu/elements.h"

namespace fusedsc {
namespace {

/// The vector's values, or `missing`, to a row.
template <class A>
void widen(const ConstChannelVector& vector, std::int64_t channels, A missing, A* row) {
  if (!vector) {
    std::fill_n(row, channels, missing);
    return;
  }
  with_type(vector.dtype, [&]<class T>(T) {
    const T* const values = static_cast<const T*>(vector.data);
    std::transform(values, values + channels, row, [](T value) { return static_cast<A>(widened(value)); });
  });
}

/// Row by row, so that each loop is about one type.
template <class A>
void fold(const BatchNormFoldArguments& arguments) {
  const TensorView& statistics = arguments.statistics;
  A* first = static_cast<A*>(statistics.data);
  for (const FoldedBatchNorm& norm : arguments.batch_norms) {
    const auto row = [&](StatisticsRow number) { return first + static_cast<int>(number) * statistics.strides[2]; };
    A *const mean = row(StatisticsRow::mean), *const invstd = row(StatisticsRow::invstd),
             *const variance = row(StatisticsRow::variance), *const scale = row(StatisticsRow::scale),
             *const shift = row(StatisticsRow::shift);
    widen(norm.mean, norm.channels, A(0), mean);
    widen(norm.variance, norm.channels, A(1), variance);
    widen(norm.weight, norm.channels, A(1), scale);
    widen(norm.bias, norm.channels, A(0), shift);
    const A eps = norm.variance ? static_cast<A>(norm.eps) : A(0);
    for (std::int64_t c = 0; c < norm.channels; ++c) {
      invstd[c] = 1 / std::sqrt(variance[c] + eps);
      scale[c] *= invstd[c];
      shift[c] -= mean[c] * scale[c];
    }
    first += norm.channels;
  }
}

void run(const BatchNormFoldArguments& arguments, const Execution&) {
  arguments.statistics.dtype == DataType::float64 ? fold<double>(arguments) : fold<float>(arguments);
}

std::string why_not(const BatchNormFoldArguments& arguments) {
  return needs_device(Device::cpu, arguments.statistics.device);
}

}  // namespace

Implementation<BatchNormFoldArguments> batch_norm_fold_cpu() {
  return {"cpu", why_not, plan_of_nothing<BatchNormFoldArguments, run>};
}

}  // namespace fusedsc
