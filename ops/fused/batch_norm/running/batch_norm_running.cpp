#include "fusedsc/fused/batch_norm_running.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/fused/batch_norm/running/batch_norm_running_cpu.h"
#include "fusedsc/fused/batch_norm/running/batch_norm_running_gpu.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<BatchNormRunningArguments>> implementations() {
  static const Implementation<BatchNormRunningArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_running_gpu(),
#endif
      batch_norm_running_cpu(),
  };
  return list;
}

void check_vector(const char* name, std::size_t number, const ConstChannelVector& vector, const RunningBatchNorm& norm,
                  Device device) {
  if (!vector) return;
  check(vector.size == norm.channels, name, " of BatchNorm ", number, ": it has ", vector.size,
        " values, but must have ", norm.channels);
  check(vector.device == device, name, " of BatchNorm ", number, ": it must be where the batch's statistics are");
}

void check_problem(const BatchNormRunningArguments& arguments) {
  std::int64_t channels = 0;
  for (std::size_t i = 0; i < arguments.batch_norms.size(); ++i) {
    const RunningBatchNorm& norm = arguments.batch_norms[i];
    check(norm.channels >= 0, "channels of BatchNorm ", i, ": they are ", norm.channels, "; they must not be negative");
    check_vector("mean", i, norm.mean, norm, arguments.device);
    check_vector("variance", i, norm.variance, norm, arguments.device);
    check(static_cast<bool>(norm.mean) == static_cast<bool>(norm.variance), "mean and variance of BatchNorm ", i,
          ": only one is given; give both or neither");
    check(!norm.is_cumulative || norm.batches != nullptr, "batches of BatchNorm ", i,
          ": a cumulative mean needs their number; give it, or a momentum");
    channels += norm.channels;
  }
  check(static_cast<bool>(arguments.mean) == static_cast<bool>(arguments.variance),
        "mean and variance: only one is given; give both, or neither after an empty batch");
  for (const auto& [name, vector] : {std::pair("mean", arguments.mean), std::pair("variance", arguments.variance)}) {
    if (!vector) continue;
    check(vector.size == channels, name, ": it has ", vector.size, " values, but the BatchNorms have ", channels,
          " channels");
    check(vector.device == arguments.device, name, ": it must be on the device that is given");
    check(vector.dtype == accumulation_type(vector.dtype) && vector.dtype == arguments.mean.dtype, name,
          ": its type is ", name_of(vector.dtype), "; both must be float32, or both float64");
  }
}

void check_memory(const BatchNormRunningArguments& arguments) {
  for (const RunningBatchNorm& norm : arguments.batch_norms) {
    for (const ConstChannelVector& written : {ConstChannelVector(norm.mean), ConstChannelVector(norm.variance)}) {
      check_no_overlap({{"running statistics", written}}, {{"mean", arguments.mean}, {"variance", arguments.variance}});
    }
  }
}

bool is_empty(const BatchNormRunningArguments& arguments) { return arguments.batch_norms.empty(); }
void clear_results(const BatchNormRunningArguments&) {}

constexpr Operator<BatchNormRunningArguments> kUpdate{
    .name = "update_running_statistics",
    .implementations = implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

}  // namespace

void update_running_statistics(const BatchNormRunningArguments& arguments, const Execution& execution) {
  run(kUpdate, arguments, execution);
}

std::vector<Candidate> explain_update_running_statistics(const BatchNormRunningArguments& arguments) {
  return explain(kUpdate, arguments);
}

}  // namespace fusedsc
