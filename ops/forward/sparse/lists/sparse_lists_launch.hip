#include <algorithm>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/sparse/lists/sparse_elements_kernel.h"
#include "fusedsc/forward/sparse/lists/sparse_lists_plan.h"
#include "fusedsc/forward/sparse/sparse_kernels.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {
namespace {

constexpr const char *kName = "sparse_conv2d", *kPackName = "pack_sparse_weight";

template <class T, int kLanes, int kVector, bool kCompressed>
FUSEDSC_KERNEL(kSparseThreads, 2)
sparse_lists_kernel(SparseListsParameters parameters) {
  SparseLists<T, kLanes, kVector, kCompressed>::run(parameters);
}

template <class T>
FUSEDSC_KERNEL(kSparseElementThreads, 1)
sparse_finish_kernel(SparseFinishParameters parameters) {
  SparseFinish<T>::run(parameters);
}

template <class T>
FUSEDSC_KERNEL(kSparseElementThreads, 1)
sparse_pack_kernel(PackSparseParameters parameters) {
  pack_sparse<T>(parameters);
}

/// The kernels for 32, 64 and 128 outputs of a block, and for weights at any address.
struct ListsKernels {
  void (*aligned[3])(SparseListsParameters);
  void (*unaligned)(SparseListsParameters);
};

/// Of a type.
struct Instances {
  ListsKernels dense, compressed;
  void (*finish)(SparseFinishParameters);
  void (*pack)(PackSparseParameters);
};

template <class T, bool kCompressed>
constexpr ListsKernels lists_kernels() {
  if constexpr (sizeof(T) == 8) {
    return {{sparse_lists_kernel<T, 16, 2, kCompressed>, nullptr, nullptr}, sparse_lists_kernel<T, 32, 1, kCompressed>};
  } else {
    return {{sparse_lists_kernel<T, 8, 4, kCompressed>, sparse_lists_kernel<T, 16, 4, kCompressed>,
             sparse_lists_kernel<T, 32, 4, kCompressed>},
            sparse_lists_kernel<T, 32, 1, kCompressed>};
  }
}

template <class T>
constexpr Instances instances() {
  return {lists_kernels<T, false>(), lists_kernels<T, true>(), sparse_finish_kernel<T>, sparse_pack_kernel<T>};
}

const Instances& instances_of(DataType dtype) {
  static constexpr Instances kFloat = instances<float>(), kDouble = instances<double>(),
                             kFloat16 = instances<Float16>(), kBFloat16 = instances<BFloat16>();
  switch (dtype) {
    case DataType::float64: return kDouble;
    case DataType::float16: return kFloat16;
    case DataType::bfloat16: return kBFloat16;
    default: return kFloat;
  }
}

SparseListsPlan best_plan(const SparseArguments& a) {
  const int count = multiprocessors();
  SparseListsPlan best;
  double least = 0;
  for (const SparseTiling& tiling : sparse_tilings(a)) {
    SparseListsPlan plan = plan_sparse_lists(a, tiling);
    const double cost = sparse_cost(plan, count);
    if (best.blocks > 0 && cost >= least) continue;
    least = cost;
    best = std::move(plan);
  }
  return best;
}

tuning::Configs configs(const SparseArguments& a) {
  tuning::Configs all;
  for (const SparseTiling& tiling : sparse_tilings(a)) all.push_back(config_of(tiling));
  return all;
}

/// What a call takes of its workspace.
struct Taken {
  void *packed = nullptr, *partials = nullptr;

  Taken(const SparseArguments& a, const SparseListsPlan& plan, Arena& arena) {
    const auto size = static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
    if (!a.packed) packed = arena.take<char>(packed_sparse_weight_size(a.weight.sizes, a.groups) * size);
    if (plan.has_partials) partials = arena.take<char>(plan.partials * size);
  }
};

Plan<SparseArguments> plan_lists(const SparseArguments& a, const tuning::Config& config, int /*threads*/) {
  const SparseListsPlan planned = plan_sparse_lists(a, tiling_of(config));
  Arena measured(nullptr);
  Taken(a, planned, measured);
  const Instances& of = instances_of(a.x.dtype);
  const ListsKernels& kernels = a.x_counts || a.y_counts ? of.compressed : of.dense;
  const auto run = planned.is_aligned ? kernels.aligned[planned.tiling.outputs / 64] : kernels.unaligned;
  return {
      measured.used(), [planned, run, &of](const SparseArguments& like, const Execution& execution) {
        Arena arena(execution.workspace);
        const Taken taken(like, planned, arena);
        if (taken.packed != nullptr) {
          const DataType sums = accumulation_type(like.x.dtype);
          const std::int64_t size = packed_sparse_weight_size(like.weight.sizes, like.groups);
          pack_sparse_weight({like.weight, like.groups, {taken.packed, sums, size, like.x.device}}, execution.stream);
        }
        SparseListsParameters p = planned.parameters;
        p.x = like.x;
        p.x_channels = static_cast<const std::uint8_t*>(like.x_channels.data);
        p.x_counts = static_cast<const std::uint32_t*>(like.x_counts.data);
        p.y = like.y;
        p.y_channels = static_cast<std::uint8_t*>(like.y_channels.data);
        p.y_counts = static_cast<std::uint8_t*>(like.y_counts.data);
        p.weight = taken.packed != nullptr ? taken.packed : like.packed.data;
        p.bias = like.bias.data;
        p.partials = taken.partials;
        launch_following(kName, run, planned.blocks, p.threads, execution.stream, p, planned.shared_memory_bytes);
        if (!planned.has_partials) return;
        SparseFinishParameters f = planned.finish;
        f.y = like.y;
        f.y_channels = p.y_channels;
        f.y_counts = p.y_counts;
        f.bias = like.bias.data;
        f.partials = taken.partials;
        launch_following(kName, of.finish, divide_up(f.items, kSparseElementThreads), kSparseElementThreads,
                         execution.stream, f, p.compresses_y ? kSparseElementThreads * sizeof(int) : 0);
      }};
}

}  // namespace

tuning::Kernel<SparseArguments> sparse_lists() { return {"gpu_lists", why_not_sparse_lists, configs, plan_lists}; }

tuning::Config sparse_lists_prior(const SparseArguments& arguments) { return config_of(best_plan(arguments).tiling); }

void pack_sparse_weight(const PackSparseWeightArguments& a, void* stream) {
  const Sizes& sizes = a.weight.sizes;
  PackSparseParameters p;
  p.weight = a.weight.data;
  p.packed = a.packed.data;
  p.output_stride = a.weight.strides[0];
  p.channel_stride = a.weight.strides[1];
  p.row_stride = a.weight.strides[2];
  p.column_stride = a.weight.strides[3];
  p.outputs = static_cast<int>(sizes[0] / a.groups);
  p.row_blocks = int_divide_up(p.outputs, kSparseRow);
  p.kernel_rows = static_cast<int>(sizes[2]);
  p.kernel_columns = static_cast<int>(sizes[3]);
  p.rows = sizes[1] * sizes[2] * sizes[3];
  p.all = packed_sparse_weight_size(sizes, a.groups);
  launch_following(kPackName, instances_of(a.weight.dtype).pack, divide_up(p.all, kSparseElementThreads),
                   kSparseElementThreads, stream, p);
}

}  // namespace fusedsc::gpu
