#include "fusedsc/common/cpu/targets.h"
#include "fusedsc/fused/dsc_block/dsc_block_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/dsc_block/dsc_block_backward_cpu.cpp"
#include "hwy/foreach_target.h"

#include <optional>
#include <vector>

#include "fusedsc/backward/depthwise/cpu/depthwise_backward_pass-inl.h"
#include "fusedsc/common/normaliser.h"
#include "fusedsc/fused/dsc_block/dsc_block_gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Backward pass A: d and ga on a tile; the sums BatchNorm's backward needs, the pointwise weight's gradient, and
/// grad_bn where it is to be stored.
template <class T>
struct DscBlockBackwardA {
  const DscBlockBackwardArguments& block;
  Slices slices;
  Arena arena;
  DscMiddle<T> middle;
  ActivationGradient<T> gradient;
  std::int64_t lanes;
  T* mean;
  T* sums;                                       ///< [slice][2][pitch]
  std::optional<WeightGradient<T>> grad_weight;  ///< a copy per lane
  T* grad_bias;                                  ///< [lane][M]

  DscBlockBackwardA(const DscBlockBackwardArguments& block_, int threads, void* workspace, const DscTiling& tiling)
      : block(block_),
        slices(block.grad_y.sizes[0], block.grad_y.sizes[2], threads, tiling.splits),
        arena(workspace),
        middle(block, tiling, arena),
        gradient(block, middle, tiling, arena),
        lanes(std::min<std::int64_t>(threads, slices.count())),
        mean(arena.take<T>(middle.pitch())),
        sums(arena.take<T>(slices.count() * 2 * middle.pitch())),
        grad_bias(block.grad_pw_bias ? arena.take<T>(lanes * block.grad_y.sizes[1]) : nullptr) {
    if (block.grad_pw_weight) grad_weight.emplace(block.grad_pw_weight, 1, false, lanes, arena);
  }

  struct Lane {
    DscDepthwise<T> depthwise;
    T* tile;      ///< d, then the activation of BN(d)
    T* gradient;  ///< ga, then the gradient at BN's output
    T* grad_y;
    bool first_tile = true;

    Lane(const DscBlockBackwardA& pass, Arena& arena)
        : depthwise(pass.middle, arena),
          tile(arena.take<T>(pass.middle.tile_size())),
          gradient(arena.take<T>(pass.middle.tile_size())),
          grad_y(arena.take<T>(pass.gradient.grad_y.tile_size(pass.middle.tile_rows))) {}
  };

  std::size_t workspace_bytes() {
    Arena measured = arena;
    for (std::int64_t lane = 0; lane < lanes; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution, const MiddleGradient& result) {
    middle.pack(block);
    gradient.weight.pack(execution);
    copy_channels(block.mean, T(0), 0, middle.channels(), 1, mean);
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes; ++lane) scratch.emplace_back(*this, arena);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      if (grad_bias != nullptr) std::fill_n(grad_bias + lane * block.grad_y.sizes[1], block.grad_y.sizes[1], T(0));
      const Range mine = part_of(slices.count(), lanes, lane);
      for (std::int64_t slice = mine.begin; slice < mine.end; ++slice) {
        run_slice(slice, lane, scratch[static_cast<std::size_t>(lane)]);
      }
    });
    reduce(result);
    if (grad_weight) grad_weight->finish(execution, true);
  }

  void run_slice(std::int64_t slice, std::int64_t lane_index, Lane& lane) {
    std::fill_n(sums + slice * 2 * middle.pitch(), 2 * middle.pitch(), T(0));
    const Range images = slices.images_of(slice), rows = slices.rows_of(slice);
    for (std::int64_t n = images.begin; n < images.end; ++n) {
      for (std::int64_t h = rows.begin; h < rows.end; h += middle.tile_rows) {
        run_tile(n, h, std::min(middle.tile_rows, rows.end - h), slice, lane_index, lane);
      }
    }
  }

  void run_tile(std::int64_t n, std::int64_t h, std::int64_t count, std::int64_t slice, std::int64_t lane_index,
                Lane& lane) {
    const std::int64_t positions = count * middle.columns(), pitch = middle.pitch();
    lane.depthwise.fill(n, h, count, lane.tile);
    const T* grad_y = gradient.fill(n, h, count, lane.grad_y, lane.gradient);
    T* slice_sums = sums + slice * 2 * pitch;
    apply_activation_backward<PositionMajor<T>, T>(Patch<T>{lane.gradient, pitch}, {lane.tile, pitch}, middle.affine(),
                                                   {mean, slice_sums, slice_sums + pitch}, {positions, pitch});
    for (std::int64_t r = 0; r < count && block.grad_bn; ++r) {
      store_tile<T>(lane.gradient + r * middle.columns() * pitch, block.grad_bn,
                    {.image = n, .row = h + r, .positions = middle.columns(), .channels = middle.channels()});
    }
    if (grad_weight) {
      apply_affine<T>(lane.tile, positions, pitch, middle.affine());
      add_weight_gradient(grad_y, positions, lane_index, lane);
    }
    if (grad_bias == nullptr) return;
    T* bias = grad_bias + lane_index * block.grad_y.sizes[1];
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t m = 0; m < block.grad_y.sizes[1]; ++m) bias[m] += grad_y[p * gradient.grad_y.pitch() + m];
    }
  }

  void add_weight_gradient(const T* grad_y, std::int64_t positions, std::int64_t lane_index, Lane& lane) {
    Gemm<T> product;
    product.rows = block.grad_y.sizes[1];
    product.columns = middle.channels();
    product.depth = positions;
    product.a = grad_y;
    product.a_row = 1;
    product.a_depth = gradient.grad_y.pitch();
    product.b = lane.tile;
    product.b_depth = middle.pitch();
    product.c = grad_weight->group(lane_index, 0);
    product.c_row = grad_weight->pitch();
    product.accumulate = !lane.first_tile;
    lane.first_tile = false;
    Prefetcher none;
    gemm(product, none);
  }

  /// Slices and lanes, added in their order.
  void reduce(const MiddleGradient& result) {
    const std::int64_t pitch = middle.pitch();
    for (std::int64_t s = 1; s < slices.count(); ++s) add_in_place(sums, sums + s * 2 * pitch, 2 * pitch);
    std::copy_n(sums, middle.channels(), static_cast<T*>(result.sum_grad.data));
    std::copy_n(sums + pitch, middle.channels(), static_cast<T*>(result.sum_grad_times_centered.data));
    if (grad_bias == nullptr) return;
    const std::int64_t outputs = block.grad_y.sizes[1];
    with_storage<T>(block.grad_pw_bias.dtype, [&]<class Storage>() {
      for (std::int64_t m = 0; m < outputs; ++m) {
        T sum = grad_bias[m];
        for (std::int64_t lane = 1; lane < lanes; ++lane) sum += grad_bias[lane * outputs + m];
        static_cast<Storage*>(block.grad_pw_bias.data)[m] = scalar_storage<Storage>(sum);
      }
    });
  }
};

template <class T>
using BackwardB = DepthwiseBackwardPass<T, RecomputedGradients<T>>;

MiddleGradient take_middle_gradient(const DscBlockBackwardArguments& block, Arena& arena) {
  const ConstTensorView d = middle_view(block.x, block.dw_weight, block.window);
  MiddleGradient middle;
  for (ChannelVector* vector :
       {&middle.sum_grad, &middle.sum_grad_times_centered, &middle.grad_scale, &middle.output_scale, &middle.offset}) {
    *vector = take_channels(arena, d);
  }
  return middle;
}

/// Of pass B: d's channels stay together.
template <class T>
DepthwiseBackwardTiling depthwise_backward_tiling(const DepthwiseBackwardArguments& depthwise,
                                                  const DscTiling& tiling) {
  DepthwiseBackwardTiling own = prior_tiling<T>(depthwise, true);
  own.splits = tiling.splits;
  return own;
}

template <class T>
std::size_t backward_workspace(const DscBlockBackwardArguments& block, const DscTiling& tiling, int threads) {
  Arena arena(nullptr);
  const MiddleGradient middle = take_middle_gradient(block, arena);
  std::size_t bytes = DscBlockBackwardA<T>(block, threads, nullptr, tiling).workspace_bytes();
  if (wants_depthwise_gradients(block)) {
    const DepthwiseBackwardArguments depthwise = depthwise_backward_of(block);
    const auto own = depthwise_backward_tiling<T>(depthwise, tiling);
    bytes = std::max(bytes, BackwardB<T>({block, middle, tiling}, depthwise, threads, nullptr, own).workspace_bytes());
  }
  return arena.used() + bytes;
}

template <class T>
void backward_run(const DscBlockBackwardArguments& block, const DscTiling& tiling, const Execution& execution) {
  Arena arena(execution.workspace);
  const MiddleGradient middle = take_middle_gradient(block, arena);
  const Execution rest = rest_of(execution, arena);
  DscBlockBackwardA<T>(block, rest.threads, rest.workspace, tiling).run(rest, middle);
  normalise(sums_of(block, middle), middle_count(block.grad_y));
  if (!wants_depthwise_gradients(block)) return;
  const DepthwiseBackwardArguments depthwise = depthwise_backward_of(block);
  const auto own = depthwise_backward_tiling<T>(depthwise, tiling);
  BackwardB<T>({block, middle, tiling}, depthwise, rest.threads, rest.workspace, own).run(rest);
}

template <class T>
Plan<DscBlockBackwardArguments> backward_plan(const DscBlockBackwardArguments& block, const DscTiling& tiling,
                                              int threads) {
  return {backward_workspace<T>(block, tiling, threads),
          [tiling](const DscBlockBackwardArguments& like, const Execution& execution) {
            backward_run<T>(like, tiling, execution);
          }};
}

Config dsc_block_backward_prior(const DscBlockBackwardArguments& block) { return dsc_prior_of(block); }
Configs dsc_block_backward_all(const DscBlockBackwardArguments& block) { return dsc_configs_of(block); }

Plan<DscBlockBackwardArguments> dsc_block_backward_plan(const DscBlockBackwardArguments& block, const Config& config,
                                                        int threads) {
  if (block.x.dtype == DataType::float64) return backward_plan<double>(block, DscTiling(config), threads);
  return backward_plan<float>(block, DscTiling(config), threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(dsc_block_backward_prior);
HWY_EXPORT(dsc_block_backward_all);
HWY_EXPORT(dsc_block_backward_plan);

tuning::Configs configs(const DscBlockBackwardArguments& block) {
  return HWY_DYNAMIC_DISPATCH(dsc_block_backward_all)(block);
}

}  // namespace

tuning::Config dsc_block_backward_cpu_prior(const DscBlockBackwardArguments& block) {
  return HWY_DYNAMIC_DISPATCH(dsc_block_backward_prior)(block);
}

tuning::Kernel<DscBlockBackwardArguments> dsc_block_backward_cpu() {
  return {
      .name = "cpu_fused",
      .unsupported =
          [](const DscBlockBackwardArguments& block) {
            const std::string device = needs_device(Device::cpu, block.x.device);
            return device.empty() ? needs_dense_pointwise(block) : device;
          },
      .configs = configs,
      .plan =
          [](const DscBlockBackwardArguments& block, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu_fused", block, config, dsc_block_backward_cpu_prior(block), configs);
            return HWY_DYNAMIC_DISPATCH(dsc_block_backward_plan)(block, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
