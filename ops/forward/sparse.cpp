#include "fusedsc/forward/sparse.h"

#include <algorithm>

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/forward/sparse/cpu/sparse_cpu.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/role.h"
#ifdef FUSEDSC_GPU
#include "fusedsc/forward/sparse/sparse_kernels.h"
#endif

namespace fusedsc {
namespace {

using Kernel = tuning::Kernel<SparseArguments>;

std::span<const Kernel> kernels() {
  static const Kernel list[] = {
#ifdef FUSEDSC_GPU
      gpu::sparse_lists(),
#endif
      sparse_cpu(),
  };
  return list;
}

tuning::Config prior_config([[maybe_unused]] const Kernel& kernel, [[maybe_unused]] const SparseArguments& a) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::sparse_lists_prior(a);
#endif
  return {};
}

/// There is one kernel for each device.
tuning::Choice<SparseArguments> prior(const SparseArguments& a) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.unsupported(a).empty()) return {&kernel, prior_config(kernel, a)};
  }
  return {};
}

constexpr tuning::Role<SparseArguments> kRole{"sparse_conv2d.forward", kernels, prior, prior_config};
const tuning::RoleRegistration kRegistered(kRole.name, [] { return tuning::names_of(kernels()); });

/// A compressed map's parts, if there are such. `name`: "x" or "y"; `multiple` divides the channels of a group.
void check_compressed(const char* name, const ConstTensorView& map, const ConstChannelVector& channels,
                      const ConstChannelVector& counts, std::int64_t groups, std::int64_t multiple) {
  if (!channels && !counts) return;
  const Sizes strides = compressed_strides(map.sizes);
  check(map.strides == strides, name, ": its strides are ", printed(map.strides), ", but those of a compressed map's ",
        "values must be ", printed(strides));
  const auto check_bytes = [&](const std::string& part, const ConstChannelVector& bytes, std::int64_t size) {
    check(bytes && bytes.size == size && bytes.dtype == DataType::float32, part, ": it has ", bytes.size,
          " elements, but of this compressed map must have ", size, " of float32, each of four bytes");
    check(reinterpret_cast<std::uintptr_t>(bytes.data) % 4 == 0, part, ": its address must be a multiple of 4");
    check_device({part.c_str(), bytes}, map.device);
  };
  check_bytes(std::string(name) + "_channels", channels, compressed_channels_size(map.sizes));
  check_bytes(std::string(name) + "_counts", counts, compressed_counts_size(map.sizes));
  check(groups == 1 || map.sizes[1] / groups % multiple == 0, "groups: it is ", groups, ", which leaves ",
        map.sizes[1] / groups, " channels of ", name, " to each; where ", name, " is a compressed map, give groups of ",
        "a multiple of ", multiple, " channels, or a dense map");
}

void check_problem(const SparseArguments& a) {
  check_readable({"x", a.x});
  if (!a.packed) check_readable({"weight", a.weight});
  check_dtype({"weight", a.weight}, a.x.dtype, "that of x");
  const Sizes sizes = sparse_output_sizes(a.x.sizes, a.weight.sizes, a.groups, a.window, a.pooling);
  check_channels("packed", a.packed, packed_sparse_weight_size(a.weight.sizes, a.groups), accumulation_type(a.x.dtype));
  check_channels("bias", a.bias, sizes[1], a.x.dtype);
  check_sizes({"y", a.y}, sizes, "the output's sizes");
  check_dtype({"y", a.y}, a.x.dtype, "that of x");
  if (a.y) check_writable({"y", a.y});
  check_compressed("x", a.x, a.x_channels, a.x_counts, a.groups, kMapRun);
  check_compressed("y", a.y, a.y_channels, a.y_counts, a.groups, kMapList);
  for (const NamedTensor& tensor : {NamedTensor("weight", a.weight), NamedTensor("packed", a.packed),
                                    NamedTensor("bias", a.bias), NamedTensor("y", a.y)}) {
    check_device(tensor, a.x.device);
  }
}

void check_memory(const SparseArguments& a) {
  check_given({"x", a.x});
  check_given({"y", a.y});
  if (!a.packed) check_given({"weight", a.weight});
  check_no_overlap({{"y", a.y}, {"y_channels", a.y_channels}, {"y_counts", a.y_counts}}, {{"x", a.x},
                                                                                          {"x_channels", a.x_channels},
                                                                                          {"x_counts", a.x_counts},
                                                                                          {"weight", a.weight},
                                                                                          {"packed", a.packed},
                                                                                          {"bias", a.bias}});
}

/// What the registry knows the problem by.
SparseArguments without_config(const SparseArguments& a) {
  SparseArguments problem = a;
  problem.config.clear();
  return problem;
}

constexpr Operator<SparseArguments> kOperator{
    .name = "sparse_conv2d",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty_forward<SparseArguments>,
    .clear_results = [](const SparseArguments&) {},
    .plan = [](const SparseArguments& a,
               int threads) { return tuning::plan_chosen(kRole, without_config(a), threads, a.config); },
    .candidates = [](const SparseArguments& a,
                     int threads) { return tuning::candidates(kRole, without_config(a), threads, a.config); },
};

std::int64_t pooled(const char* axis, std::int64_t input, std::int64_t size, std::int64_t stride) {
  check(size > 0, "pool_size: the ", axis, " size is ", size, "; it must be at least 1");
  check(stride > 0, "pool_stride: the ", axis, " stride is ", stride, "; it must be at least 1");
  check(size <= input, "pool_size: the ", axis, " size is ", size, ", larger than the convolution's result of ", input);
  return (input - size) / stride + 1;
}

}  // namespace

std::int64_t MaxPooling::output_height(std::int64_t input_height) const {
  return pooled("vertical", input_height, size[0], stride[0]);
}

std::int64_t MaxPooling::output_width(std::int64_t input_width) const {
  return pooled("horizontal", input_width, size[1], stride[1]);
}

Sizes sparse_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups, const Window& window,
                          const MaxPooling& pooling) {
  check(groups > 0, "groups: it is ", groups, "; it must be at least 1");
  check(x[1] > 0 && x[1] % groups == 0, "groups: it is ", groups, ", which must divide the ", x[1], " channels of x");
  check(weight[0] > 0 && weight[0] % groups == 0, "groups: it is ", groups, ", which must divide the ", weight[0],
        " output channels of weight");
  const Sizes expected{weight[0], x[1] / groups, window.kernel[0], window.kernel[1]};
  check(weight == expected, "weight: its sizes are ", printed(weight), ", but must be ", printed(expected),
        ", for the ", x[1], " channels of x and ", groups, " groups");
  return {x[0], weight[0], pooling.output_height(window.output_height(x[2])),
          pooling.output_width(window.output_width(x[3]))};
}

Sizes compressed_strides(const Sizes& map) {
  const std::int64_t column = compressed_channels(map[1]), row = map[3] * column;
  return {map[2] * row, 1, row, column};
}

std::int64_t compressed_channels_size(const Sizes& map) {
  return map[0] * map[2] * map[3] * compressed_channels(map[1]) / 4;
}

std::int64_t compressed_counts_size(const Sizes& map) { return compressed_channels_size(map) / kMapRun; }

FUSEDSC_LISTED_OPERATOR(sparse_conv2d, SparseArguments, kOperator)

std::vector<std::string> sparse_conv2d_configs(const SparseArguments& arguments, int threads, std::size_t most) {
  check_threads(threads);
  check_problem(arguments);
  if (is_empty_forward(arguments) || tuning::forced(kRole.name)) return {};
  return tuning::ProblemOf<SparseArguments>(kRole, without_config(arguments), threads).candidates(most);
}

std::int64_t packed_sparse_weight_size(const Sizes& weight, std::int64_t groups) {
  check(groups > 0 && weight[0] % groups == 0, "groups: it is ", groups, ", which must divide the ", weight[0],
        " output channels of weight");
  return groups * divide_up(weight[0] / groups, kPackedOutputs) * kPackedOutputs * weight[1] * weight[2] * weight[3];
}

void pack_sparse_weight(const PackSparseWeightArguments& a, const Execution& execution) {
  check_readable({"weight", a.weight});
  check_given({"weight", a.weight});
  check_channels_given("packed", a.packed, packed_sparse_weight_size(a.weight.sizes, a.groups),
                       accumulation_type(a.weight.dtype));
  check_no_overlap({{"packed", a.packed}}, {{"weight", a.weight}});
#ifdef FUSEDSC_GPU
  if (a.weight.device == Device::gpu) return gpu::pack_sparse_weight(a, execution.stream);
#endif
  const std::string elsewhere = needs_device(Device::cpu, a.weight.device);
  if (!elsewhere.empty())
    throw Unsupported("pack_sparse_weight: " + elsewhere + ", and this build has no kernels for it");
  cpu::pack_sparse_weight(a, execution);
}

SparseWork sparse_work(const SparseArguments& a) {
  check_readable({"x", a.x});
  check_given({"x", a.x});
  check(a.x.device == Device::cpu, "x: it is on a GPU; what is to do is counted on the CPU");
  check(!a.x_channels && !a.x_counts, "x: it is a compressed map; what is to do is counted of a dense one");
  sparse_output_sizes(a.x.sizes, a.weight.sizes, a.groups, a.window, {});
  return cpu::sparse_work(a);
}

}  // namespace fusedsc
