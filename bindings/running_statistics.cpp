#include "running_statistics.h"

#include <ATen/ATen.h>

#include "arguments.h"
#include "fusedsc/common/status.h"

namespace fusedsc::aten {

void RunningStatistics::check(const at::Tensor& x, const c10::SymInt& channels, bool training,
                              std::optional<double> momentum) const {
  fusedsc::check(mean.has_value() == var.has_value(),
                 "running_mean and running_var: only one is given; give both or neither");
  fusedsc::check(!training || !mean || momentum || num_batches_tracked,
                 "momentum: None (cumulative average) needs num_batches_tracked; give it, or a number as momentum");
  check_batch_norm_vector("running_mean", mean, x, channels);
  check_batch_norm_vector("running_var", var, x, channels);
}

at::Tensor RunningStatistics::to_statistics(double eps, at::ScalarType dtype) const {
  return at::stack({mean->to(dtype), (var->to(dtype) + eps).rsqrt()});
}

void RunningStatistics::update(const at::Tensor& statistics, bool empty_batch, std::optional<double> momentum) const {
  if (num_batches_tracked) num_batches_tracked->add_(1);
  if (!mean || empty_batch) return;
  const auto move = [&](const at::Tensor& running, std::int64_t row) {
    const at::Tensor target = statistics.select(0, row).to(running.scalar_type());
    if (momentum) {
      running.lerp_(target, *momentum);
    } else {
      running.lerp_(target, num_batches_tracked->to(running.scalar_type()).reciprocal());
    }
  };
  move(*mean, 0);
  move(*var, 2);
}

}  // namespace fusedsc::aten
