#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/skinny/pointwise_skinny_kernel.h"
#include "fusedsc/forward/pointwise/skinny/pointwise_skinny_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "pointwise_conv2d";

template <class Product>
FUSEDSC_KERNEL(kSkinnyThreads, Product::kBlocks)
skinny_kernel(PointwiseSkinnyParameters parameters) {
  wait_for_previous_kernel();
  Product::run(parameters);
}

struct Instance {
  DataType dtype;
  bool channels_inner;
  int vector;
  void (*run)(PointwiseSkinnyParameters);
  int (*memory_bytes)(int channels), (*tile_vectors)(int lanes);
};

template <class T, bool kChannelsInner, int kVector>
constexpr Instance instance(DataType dtype) {
  using Product =
      std::conditional_t<kChannelsInner, PointwiseSkinnyChannels<T, kVector>, PointwiseSkinnyPlanes<T, kVector>>;
  return {dtype, kChannelsInner, kVector, skinny_kernel<Product>, Product::memory_bytes, Product::tile_vectors};
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  constexpr int kRun = 16 / static_cast<int>(sizeof(T));
  to.push_back(instance<T, true, kRun>(dtype));
  to.push_back(instance<T, true, 1>(dtype));
  to.push_back(instance<T, false, kRun>(dtype));
  if constexpr (kRun > 2) to.push_back(instance<T, false, kRun / 2>(dtype));
  to.push_back(instance<T, false, 1>(dtype));
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    append_all<float>(list, DataType::float32);
    append_all<double>(list, DataType::float64);
    return list;
  }();
  return all;
}

SkinnyLayout layout_of(const PointwiseArguments& a) { return skinny_layout({a.x}, {a.y, a.epilogue.residual}); }

std::string why_not(const PointwiseArguments& a) {
  if (a.weight.sizes[0] != 1) return "there are several outputs";
  return why_not_skinny(a.x, a.weight, a.groups, a.windows.channels > 0, layout_of(a));
}

/// Lanes that share a position, of so many vectors: the most of which no more than a fifth are idle, if any.
int lanes_of(int vectors) {
  int lanes = 32;
  while (lanes > 1 && (vectors + lanes - 1) / lanes * lanes * 4 > vectors * 5) lanes /= 2;
  return lanes;
}

Plan<PointwiseArguments> plan_skinny(const PointwiseArguments& a, const Config& config, int /*threads*/) {
  tuning::check_no_config("gpu_skinny", config);
  const SkinnyLayout layout = layout_of(a);
  const Instance& instance = *std::find_if(instances().begin(), instances().end(), [&](const Instance& candidate) {
    return candidate.dtype == a.x.dtype && candidate.channels_inner == layout.channels_inner &&
           candidate.vector == layout.vector;
  });
  PointwiseSkinnyParameters planned;
  planned.channels = static_cast<int>(a.x.sizes[1]);
  planned.positions = skinny_positions(a.x.sizes, layout);
  planned.lanes = lanes_of((planned.channels + layout.vector - 1) / layout.vector);
  const auto memory = static_cast<std::size_t>(instance.memory_bytes(planned.channels));
  const int tile = instance.tile_vectors(planned.lanes);
  const std::int64_t blocks = std::min<std::int64_t>((planned.positions.vectors + tile - 1) / tile,
                                                     resident_blocks(instance.run, kSkinnyThreads, memory));
  const auto take_partials = [blocks](const PointwiseArguments& like, Arena& arena) -> void* {
    if (!like.statistics) return nullptr;
    return arena.take<char>(3 * blocks * static_cast<std::int64_t>(size_of(accumulation_type(like.x.dtype))));
  };
  Arena measured(nullptr);
  take_partials(a, measured);
  return {measured.used(), [planned, run = instance.run, memory, blocks, take_partials](const PointwiseArguments& like,
                                                                                        const Execution& execution) {
            Arena arena(execution.workspace);
            PointwiseSkinnyParameters p = planned;
            p.x = SkinnyTensor(like.x);
            p.residual = SkinnyTensor(like.epilogue.residual);
            p.y = SkinnyOutput(like.y);
            p.weight = like.weight;
            p.bias = like.bias.data;
            p.prologue = {like.prologue.scale.data, like.prologue.shift.data, like.prologue.activation};
            p.epilogue = {like.epilogue.scale.data, like.epilogue.shift.data, like.epilogue.activation};
            p.partials = take_partials(like, arena);
            launch_following(kName, run, blocks, kSkinnyThreads, execution.stream, p, memory);
            if (!like.statistics) return;
            launch_merge_moments(kName, accumulation_type(like.x.dtype), p.partials, static_cast<int>(blocks),
                                 like.statistics, like.x.sizes[0] * like.x.sizes[2] * like.x.sizes[3],
                                 execution.stream);
          }};
}

}  // namespace

Kernel<PointwiseArguments> pointwise_skinny() {
  return {"gpu_skinny", why_not, [](const PointwiseArguments&) { return Configs{Config()}; }, plan_skinny};
}

}  // namespace gpu
}  // namespace fusedsc
