#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/common/joined_views.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/fused/batch_norm/batch_norm_affine_gpu.h"
#include "fusedsc/fused/batch_norm/batch_norm_affine_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

template <class A>
FUSEDSC_KERNEL(kChannelThreads, 1)
finalize_kernel(BatchNormFinalizeParameters parameters) {
  wait_for_previous_kernel();
  batch_norm_finalize<A>(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 8)
apply_kernel(BatchNormApplyParameters parameters) {
  batch_norm_apply<T, kChannels, kColumns>(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 6)
reduce_kernel(BatchNormReduceParameters parameters) {
  batch_norm_reduce<T, kChannels, kColumns, false>(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, kChannels == 8 ? 5 : 6)
gradient_kernel(BatchNormReduceParameters parameters) {
  batch_norm_reduce<T, kChannels, kColumns, true>(parameters);
}

template <class T, int kChannels, int kColumns>
constexpr auto apply(DataType dtype) {
  return pass_instance(dtype, kChannels, kColumns, apply_kernel<T, kChannels, kColumns>);
}

template <class T, int kChannels, int kColumns>
constexpr auto reduce(DataType dtype) {
  return pass_instance(dtype, kChannels, kColumns, reduce_kernel<T, kChannels, kColumns>);
}

template <class T, int kChannels, int kColumns>
constexpr auto gradient(DataType dtype) {
  return pass_instance(dtype, kChannels, kColumns, gradient_kernel<T, kChannels, kColumns>);
}

/// Of those that fit the first is taken: 16 bytes of neighbouring channels at a time, 8, or one channel. Per thread:
/// channels, columns.
const DepthwiseInstance<BatchNormApplyParameters> kApplyInstances[] = {
    apply<Float16, 8, 2>(DataType::float16),   apply<Float16, 4, 2>(DataType::float16),
    apply<Float16, 1, 8>(DataType::float16),   apply<BFloat16, 8, 2>(DataType::bfloat16),
    apply<BFloat16, 4, 2>(DataType::bfloat16), apply<BFloat16, 1, 8>(DataType::bfloat16),
    apply<float, 4, 2>(DataType::float32),     apply<float, 2, 2>(DataType::float32),
    apply<float, 1, 4>(DataType::float32),     apply<double, 1, 2>(DataType::float64),
};
const DepthwiseInstance<BatchNormReduceParameters> kReduceInstances[] = {
    reduce<Float16, 8, 1>(DataType::float16),   reduce<Float16, 4, 2>(DataType::float16),
    reduce<Float16, 1, 8>(DataType::float16),   reduce<BFloat16, 8, 1>(DataType::bfloat16),
    reduce<BFloat16, 4, 2>(DataType::bfloat16), reduce<BFloat16, 1, 8>(DataType::bfloat16),
    reduce<float, 4, 2>(DataType::float32),     reduce<float, 2, 2>(DataType::float32),
    reduce<float, 1, 4>(DataType::float32),     reduce<double, 1, 2>(DataType::float64),
};
/// What also writes the gradient.
const DepthwiseInstance<BatchNormReduceParameters> kGradientInstances[] = {
    gradient<Float16, 8, 1>(DataType::float16),   gradient<Float16, 4, 2>(DataType::float16),
    gradient<Float16, 1, 8>(DataType::float16),   gradient<BFloat16, 8, 1>(DataType::bfloat16),
    gradient<BFloat16, 4, 2>(DataType::bfloat16), gradient<BFloat16, 1, 8>(DataType::bfloat16),
    gradient<float, 4, 2>(DataType::float32),     gradient<float, 2, 2>(DataType::float32),
    gradient<float, 1, 4>(DataType::float32),     gradient<double, 1, 2>(DataType::float64),
};

/// One thread per channel.
template <class Parameters>
void launch_per_channel(const char* name, void (*kernel)(Parameters), void* stream, const Parameters& parameters) {
  const std::int64_t blocks = (std::int64_t{parameters.channels} + kChannelThreads - 1) / kChannelThreads;
  launch_following(name, kernel, blocks, kChannelThreads, stream, parameters);
}

void run_finalize(const BatchNormFinalizeArguments& a, const Execution& execution) {
  BatchNormFinalizeParameters p;
  p.channels = static_cast<int>(a.mean.size);
  p.weight = a.weight.data;
  p.bias = a.bias.data;
  p.mean = a.mean.data;
  p.invstd = a.invstd.data;
  p.m2 = a.m2.data;
  if (a.m2) p.normaliser = NormaliserParameters(normaliser_of(a), a.count);
  p.scale = a.scale.data;
  p.shift = a.shift.data;
  const auto kernel = a.mean.dtype == DataType::float64 ? finalize_kernel<double> : finalize_kernel<float>;
  launch_per_channel("batch_norm_finalize", kernel, execution.stream, p);
}

/// The work of a pass over tensors like x.
ItemWork plan_pass(const ConstTensorView& x, const DepthwiseTile& tile, int blocks) {
  const DepthwiseGrid grid{x.sizes[0],
                           x.sizes[1],
                           x.sizes[2],
                           x.sizes[3],
                           static_cast<std::int64_t>(size_of(x.dtype)),
                           x.strides[1] < x.strides[3],
                           -1};
  return plan_depthwise_work(grid, tile, blocks);
}

struct ApplyViews {
  ConstTensorView x, residual;
  TensorView out;

  explicit ApplyViews(const BatchNormApplyArguments& a) : x(a.x), residual(a.residual), out(a.out) {
    join_all_rows(x, residual, out);
  }
};

/// A launch, worked out.
struct ApplyPass {
  const DepthwiseInstance<BatchNormApplyParameters>* instance;
  bool join_columns;
  ItemWork work;

  explicit ApplyPass(const BatchNormApplyArguments& a) {
    const auto [x, residual, out] = ApplyViews(a);
    instance = &choose_instance(kApplyInstances, x.dtype, Window{}, 1, {x, residual, out});
    join_columns = columns_join(instance->tile.columns, {x, residual, out});
    work = plan_pass(x, instance->tile, resident_blocks(instance->plain, kItemThreads, 0));
  }

  void run(const BatchNormApplyArguments& a, const Execution& execution) const {
    const ApplyViews views(a);
    BatchNormApplyParameters p;
    p.x = views.x;
    p.residual = views.residual;
    p.scale = a.scale.data;
    p.shift = a.shift.data;
    p.image_scale = a.image_scale.data;
    p.activation = a.activation;
    p.out = views.out;
    p.channels = static_cast<int>(views.x.sizes[1]);
    p.width = static_cast<int>(views.x.sizes[3]);
    p.join_columns = join_columns;
    p.work = work;
    launch("batch_norm_apply", instance->plain, work.blocks(), kItemThreads, 0, execution.stream, p);
  }
};

Plan<BatchNormApplyArguments> plan_apply(const BatchNormApplyArguments& a, int /*threads*/) {
  return {0, [pass = ApplyPass(a)](const BatchNormApplyArguments& like, const Execution& execution) {
            pass.run(like, execution);
          }};
}

struct ReduceViews {
  ConstTensorView x, grad_y;
  TensorView grad;

  explicit ReduceViews(const BatchNormReduceArguments& a) : x(a.x), grad_y(a.grad_y), grad(a.grad) {
    join_all_rows(x, grad_y, grad);
  }
};

/// Two launches, worked out; without sums one.
struct ReducePass {
  const DepthwiseInstance<BatchNormReduceParameters>* instance;
  bool join_columns;
  std::size_t memory;  ///< of a block
  ItemWork work;

  explicit ReducePass(const BatchNormReduceArguments& a) {
    const auto [x, grad_y, grad] = ReduceViews(a);
    const auto& instances = grad ? kGradientInstances : kReduceInstances;
    instance = &choose_instance(instances, x.dtype, Window{}, 1, {x, grad_y, grad});
    join_columns = columns_join(instance->tile.columns, {x, grad_y, grad});
    const int values = 2 * instance->tile.channels;
    memory = x.dtype == DataType::float64 ? block_sums_bytes<double>(values) : block_sums_bytes<float>(values);
    work = plan_pass(x, instance->tile, resident_blocks(instance->plain, kItemThreads, memory));
  }

  void* take_partials(const BatchNormReduceArguments& a, Arena& arena) const {
    const std::int64_t size = std::int64_t{2} * work.splits * a.x.sizes[1];
    return arena.take<char>(size * static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype))));
  }

  std::size_t workspace_bytes(const BatchNormReduceArguments& a) const {
    Arena measured(nullptr);
    if (a.sums) take_partials(a, measured);
    return measured.used();
  }

  void run(const BatchNormReduceArguments& a, const Execution& execution) const {
    const ReduceViews views(a);
    Arena arena(execution.workspace);
    BatchNormReduceParameters p;
    p.x = views.x;
    p.grad_y = views.grad_y;
    p.scale = a.scale.data;
    p.shift = a.shift.data;
    p.image_scale = a.image_scale.data;
    p.mean = a.sums.mean.data;
    p.activation = a.activation;
    p.grad = views.grad;
    p.channels = static_cast<int>(views.x.sizes[1]);
    p.width = static_cast<int>(views.x.sizes[3]);
    p.join_columns = join_columns;
    if (a.sums) p.partials = take_partials(a, arena);
    p.work = work;
    launch("batch_norm_reduce", instance->plain, work.blocks(), kItemThreads, memory, execution.stream, p);
    if (a.sums) launch_gradient_sums("batch_norm_reduce", p.partials, work.splits, a.sums, a.x, execution.stream);
  }
};

Plan<BatchNormReduceArguments> plan_reduce(const BatchNormReduceArguments& a, int /*threads*/) {
  const ReducePass pass(a);
  return {pass.workspace_bytes(a),
          [pass](const BatchNormReduceArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

template <class Arguments>
std::string why_not_per_channel(const Arguments& a) {
  return needs_device(Device::gpu, a.mean.device);
}

template <class Arguments>
std::string why_not_whole(const Arguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_gpu(a.x.sizes, a.x.sizes, Window{});
}

}  // namespace
}  // namespace gpu

Implementation<BatchNormFinalizeArguments> batch_norm_finalize_gpu() {
  return {"gpu", gpu::why_not_per_channel<BatchNormFinalizeArguments>,
          plan_of_nothing<BatchNormFinalizeArguments, gpu::run_finalize>};
}

Implementation<BatchNormApplyArguments> batch_norm_apply_gpu() {
  return {"gpu", gpu::why_not_whole<BatchNormApplyArguments>, gpu::plan_apply};
}

Implementation<BatchNormReduceArguments> batch_norm_reduce_gpu() {
  return {"gpu", gpu::why_not_whole<BatchNormReduceArguments>, gpu::plan_reduce};
}

}  // namespace fusedsc
