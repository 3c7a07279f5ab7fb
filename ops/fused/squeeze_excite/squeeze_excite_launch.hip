#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/joined_views.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_gpu.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_plan.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_sums.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 6)
map_sums_kernel(MapSumsParameters parameters) {
  map_sums<T, kChannels, kColumns>(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 7)
excite_kernel(ExciteParameters parameters) {
  excite<T, kChannels, kColumns>(parameters);
}

template <class T, int kChannels, int kColumns>
FUSEDSC_KERNEL(kItemThreads, 4)
squeeze_backward_kernel(SqueezeBackwardParameters parameters) {
  squeeze_backward<T, kChannels, kColumns>(parameters);
}

template <class T, int kChannels, int kColumns>
constexpr auto sums_of(DataType dtype) {
  return pass_instance(dtype, kChannels, kColumns, map_sums_kernel<T, kChannels, kColumns>);
}

template <class T, int kChannels, int kColumns>
constexpr auto excite_of(DataType dtype) {
  return pass_instance(dtype, kChannels, kColumns, excite_kernel<T, kChannels, kColumns>);
}

template <class T, int kChannels, int kColumns>
constexpr auto backward_of(DataType dtype) {
  return pass_instance(dtype, kChannels, kColumns, squeeze_backward_kernel<T, kChannels, kColumns>);
}

/// Of those that fit the first is taken: 16 bytes of neighbouring channels at a time, 8, or one channel. Per thread:
/// channels, columns.
const DepthwiseInstance<MapSumsParameters> kSumsInstances[] = {
    sums_of<Float16, 8, 2>(DataType::float16),   sums_of<Float16, 4, 2>(DataType::float16),
    sums_of<Float16, 1, 8>(DataType::float16),   sums_of<BFloat16, 8, 2>(DataType::bfloat16),
    sums_of<BFloat16, 4, 2>(DataType::bfloat16), sums_of<BFloat16, 1, 8>(DataType::bfloat16),
    sums_of<float, 4, 2>(DataType::float32),     sums_of<float, 2, 2>(DataType::float32),
    sums_of<float, 1, 4>(DataType::float32),     sums_of<double, 1, 2>(DataType::float64),
};
const DepthwiseInstance<ExciteParameters> kExciteInstances[] = {
    excite_of<Float16, 8, 2>(DataType::float16),   excite_of<Float16, 4, 2>(DataType::float16),
    excite_of<Float16, 1, 8>(DataType::float16),   excite_of<BFloat16, 8, 2>(DataType::bfloat16),
    excite_of<BFloat16, 4, 2>(DataType::bfloat16), excite_of<BFloat16, 1, 8>(DataType::bfloat16),
    excite_of<float, 4, 2>(DataType::float32),     excite_of<float, 2, 2>(DataType::float32),
    excite_of<float, 1, 4>(DataType::float32),     excite_of<double, 1, 2>(DataType::float64),
};
const DepthwiseInstance<SqueezeBackwardParameters> kBackwardInstances[] = {
    backward_of<Float16, 8, 1>(DataType::float16),   backward_of<Float16, 4, 2>(DataType::float16),
    backward_of<Float16, 1, 8>(DataType::float16),   backward_of<BFloat16, 8, 1>(DataType::bfloat16),
    backward_of<BFloat16, 4, 2>(DataType::bfloat16), backward_of<BFloat16, 1, 8>(DataType::bfloat16),
    backward_of<float, 4, 2>(DataType::float32),     backward_of<float, 2, 2>(DataType::float32),
    backward_of<float, 1, 4>(DataType::float32),     backward_of<double, 1, 2>(DataType::float64),
};

/// What a second launch takes, in items that threads work off one after the other.
constexpr int kLaunchCost = 8;

/// A pass: its kernel, and how it is shared out.
template <class Parameters>
struct Pass {
  const DepthwiseInstance<Parameters>* instance;
  bool join_columns;
  std::size_t memory;  ///< of a block
  MapsWork work;

  /// `tensors` are as large as x, `per_map` have a value for each map; threads add up `values` sums of each channel.
  template <std::size_t kSize>
  Pass(const DepthwiseInstance<Parameters> (&instances)[kSize], const ConstTensorView& x,
       const std::array<ConstTensorView, 2>& tensors, const std::array<ConstTensorView, 2>& per_map, int values,
       int split_cost) {
    instance = &choose_instance(instances, x.dtype, Window{}, 1, {x, tensors[0], tensors[1], per_map[0], per_map[1]});
    const DepthwiseTile& tile = instance->tile;
    join_columns = columns_join(tile.columns, {x, tensors[0], tensors[1]});
    const int sums = values * tile.channels;
    memory = x.dtype == DataType::float64 ? block_sums_bytes<double>(sums) : block_sums_bytes<float>(sums);
    const int blocks = resident_blocks(instance->plain, kItemThreads, memory);
    if (x.elements() > 0) work = plan_maps(x, tile, blocks, split_cost);
    else work.image_blocks = 0;
  }

  template <class Arguments>
  Parameters parameters(const Arguments& a) const {
    Parameters p;
    p.x = a.x;
    p.scale = a.scale.data;
    p.shift = a.shift.data;
    p.activation = a.activation;
    p.channels = static_cast<int>(a.x.sizes[1]);
    p.width = static_cast<int>(a.x.sizes[3]);
    p.join_columns = join_columns;
    p.work = work;
    return p;
  }

  void run(const char* name, const Parameters& parameters, void* stream) const {
    launch(name, instance->plain, work.blocks(), kItemThreads, memory, stream, parameters);
  }
};

/// `count` sums for each channel of x.
void* take_sums(std::int64_t count, const ConstTensorView& x, Arena& arena) {
  return arena.take<char>(count * x.sizes[1] * static_cast<std::int64_t>(size_of(accumulation_type(x.dtype))));
}

MapSums joined(MapSums sums) {
  join_all_rows(sums.x, sums.factors);
  return sums;
}

/// One launch, or two.
struct SumsPass {
  Pass<MapSumsParameters> pass;

  explicit SumsPass(const MapSums& a) : pass(kSumsInstances, a.x, {a.factors}, {}, 1, kLaunchCost) {}

  bool is_split() const { return pass.work.maps.splits > 1; }
  std::int64_t partial_sums(const MapSums& a) const { return is_split() ? pass.work.maps.splits * a.x.sizes[0] : 0; }

  void run(const char* name, const MapSums& a, const Execution& execution) const {
    MapSumsParameters p = pass.parameters(a);
    p.factors = a.factors;
    p.weight = a.weight;
    p.sums = a.sums;
    Arena arena(execution.workspace);
    if (is_split()) p.partials = take_sums(partial_sums(a), a.x, arena);
    pass.run(name, p, execution.stream);
    if (!is_split()) return;
    SumPartialsParameters sum;  // a tap for each image
    sum.partials = p.partials;
    sum.splits = pass.work.maps.splits;
    sum.taps = sum.rows = pass.work.images;
    sum.channels = p.channels;
    sum.weight = p.sums;
    sum.weight.image = p.sums.channel;
    sum.weight.row = p.sums.image;
    launch_sum_partials(name, a.x.dtype, sum, execution.stream);
  }
};

template <class Arguments>
Plan<Arguments> plan_sums(const char* name, const Arguments& arguments) {
  const MapSums sums = joined(MapSums(arguments));
  const SumsPass pass(sums);
  Arena measured(nullptr);
  take_sums(pass.partial_sums(sums), sums.x, measured);
  return {measured.used(), [name, pass](const Arguments& like, const Execution& execution) {
            pass.run(name, joined(MapSums(like)), execution);
          }};
}

Plan<SqueezeArguments> plan_squeeze(const SqueezeArguments& a, int /*threads*/) { return plan_sums("squeeze", a); }

Plan<ExciteBackwardArguments> plan_excite_backward(const ExciteBackwardArguments& a, int /*threads*/) {
  return plan_sums("excite_backward", a);
}

ExciteArguments joined(ExciteArguments a) {
  join_all_rows(a.x, a.out);
  return a;
}

Plan<ExciteArguments> plan_excite(const ExciteArguments& arguments, int /*threads*/) {
  const ExciteArguments a = joined(arguments);
  const Pass<ExciteParameters> pass(kExciteInstances, a.x, {a.out}, {a.gate}, 0, 0);
  return {0, [pass](const ExciteArguments& like, const Execution& execution) {
            const ExciteArguments same = joined(like);
            ExciteParameters p = pass.parameters(same);
            p.gate = same.gate;
            p.out = same.out;
            pass.run("excite", p, execution.stream);
          }};
}

SqueezeBackwardArguments joined(SqueezeBackwardArguments a) {
  join_all_rows(a.x, a.grad_out, a.grad);
  return a;
}

/// Two launches.
struct BackwardPass {
  Pass<SqueezeBackwardParameters> pass;

  explicit BackwardPass(const SqueezeBackwardArguments& a)
      : pass(kBackwardInstances, a.x, {a.grad_out, a.grad}, {a.gate, a.grad_mean}, 2, 0) {}

  void* take_partials(const SqueezeBackwardArguments& a, Arena& arena) const {
    return take_sums(std::int64_t{2} * pass.work.rows(), a.x, arena);
  }

  void run(const SqueezeBackwardArguments& a, const Execution& execution) const {
    constexpr const char* kName = "squeeze_backward";
    Arena arena(execution.workspace);
    SqueezeBackwardParameters p = pass.parameters(a);
    p.grad_out = a.grad_out;
    p.gate = a.gate;
    p.grad_mean = a.grad_mean;
    p.mean_weight = 1 / static_cast<double>(a.x.sizes[2] * a.x.sizes[3]);
    p.grad = a.grad;
    p.mean = a.sums.mean.data;
    p.partials = take_partials(a, arena);
    pass.run(kName, p, execution.stream);
    launch_gradient_sums(kName, p.partials, pass.work.rows(), a.sums, a.x, execution.stream);
  }
};

Plan<SqueezeBackwardArguments> plan_squeeze_backward(const SqueezeBackwardArguments& arguments, int /*threads*/) {
  const SqueezeBackwardArguments a = joined(arguments);
  const BackwardPass pass(a);
  Arena measured(nullptr);
  pass.take_partials(a, measured);
  return {measured.used(), [pass](const SqueezeBackwardArguments& like, const Execution& execution) {
            pass.run(joined(like), execution);
          }};
}

template <class Arguments>
std::string why_not(const Arguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_gpu(a.x.sizes, a.x.sizes, Window{});
}

}  // namespace
}  // namespace gpu

Implementation<SqueezeArguments> squeeze_gpu() { return {"gpu", gpu::why_not<SqueezeArguments>, gpu::plan_squeeze}; }

Implementation<ExciteArguments> excite_gpu() { return {"gpu", gpu::why_not<ExciteArguments>, gpu::plan_excite}; }

Implementation<ExciteBackwardArguments> excite_backward_gpu() {
  return {"gpu", gpu::why_not<ExciteBackwardArguments>, gpu::plan_excite_backward};
}

Implementation<SqueezeBackwardArguments> squeeze_backward_gpu() {
  return {"gpu", gpu::why_not<SqueezeBackwardArguments>, gpu::plan_squeeze_backward};
}

}  // namespace fusedsc
