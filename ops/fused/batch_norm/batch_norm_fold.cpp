#include "fusedsc/fused/batch_norm_fold.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/fused/batch_norm/batch_norm_fold_cpu.h"
#include "fusedsc/fused/batch_norm/batch_norm_fold_gpu.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<BatchNormFoldArguments>> implementations() {
  static const Implementation<BatchNormFoldArguments> list[] = {
#ifdef FUSEDSC_GPU
      batch_norm_fold_gpu(),
#endif
      batch_norm_fold_cpu(),
  };
  return list;
}

void check_vector(const char* name, std::size_t number, const ConstChannelVector& vector, const FoldedBatchNorm& norm,
                  Device device) {
  if (!vector) return;
  check(vector.size == norm.channels, name, " of BatchNorm ", number, ": it has ", vector.size,
        " values, but must have ", norm.channels);
  check(vector.device == device, name, " of BatchNorm ", number, ": it must be where statistics are");
}

void check_problem(const BatchNormFoldArguments& arguments) {
  const TensorView& statistics = arguments.statistics;
  std::int64_t channels = 0;
  for (std::size_t i = 0; i < arguments.batch_norms.size(); ++i) {
    const FoldedBatchNorm& norm = arguments.batch_norms[i];
    check(norm.channels >= 0, "channels of BatchNorm ", i, ": they are ", norm.channels, "; they must not be negative");
    check(norm.eps >= 0, "eps of BatchNorm ", i, ": it is ", norm.eps, "; it must not be negative");
    check_vector("weight", i, norm.weight, norm, statistics.device);
    check_vector("bias", i, norm.bias, norm, statistics.device);
    check_vector("mean", i, norm.mean, norm, statistics.device);
    check_vector("variance", i, norm.variance, norm, statistics.device);
    channels += norm.channels;
  }
  const std::int64_t rows = static_cast<std::int64_t>(StatisticsRow::count);
  check_sizes({"statistics", statistics}, {1, 1, rows, channels}, "five rows of the BatchNorms' channels");
  check_writable({"statistics", statistics});
  check(statistics.dtype == accumulation_type(statistics.dtype), "statistics: their type is ",
        name_of(statistics.dtype), "; it must be float32 or float64");
  check(channels <= 1 || statistics.strides[3] == 1, "statistics: elements of a row lie ", statistics.strides[3],
        " apart; they must be neighbours");
}

void check_memory(const BatchNormFoldArguments& arguments) {
  check_given({"statistics", arguments.statistics});
  for (const FoldedBatchNorm& norm : arguments.batch_norms) {
    check_no_overlap({{"statistics", arguments.statistics}},
                     {{"weight", norm.weight}, {"bias", norm.bias}, {"mean", norm.mean}, {"variance", norm.variance}});
  }
}

bool is_empty(const BatchNormFoldArguments& arguments) { return arguments.statistics.elements() == 0; }
void clear_results(const BatchNormFoldArguments&) {}

constexpr Operator<BatchNormFoldArguments> kFold{
    .name = "fold_batch_norms",
    .implementations = implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

}  // namespace

void fold_batch_norms(const BatchNormFoldArguments& arguments, const Execution& execution) {
  run(kFold, arguments, execution);
}

std::vector<Candidate> explain_fold_batch_norms(const BatchNormFoldArguments& arguments) {
  return explain(kFold, arguments);
}

}  // namespace fusedsc
