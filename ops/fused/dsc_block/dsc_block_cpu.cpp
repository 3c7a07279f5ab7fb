#include "fusedsc/fused/dsc_block/dsc_block_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/dsc_block/dsc_block_cpu.cpp"
#include "hwy/foreach_target.h"

#include <vector>

#include "fusedsc/fused/dsc_block/dsc_block_tiles-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Forward pass 2: DW again on a tile -> BatchNorm -> activation -> product with the pointwise weight, all in cache.
template <class T>
struct DscBlockForward {
  const DscBlockArguments& block;
  Slices slices;
  Arena arena;
  DscMiddle<T> middle;
  PackedWeight<T> weight;
  PositionRows<T> y;
  T* bias = nullptr;
  std::int64_t lanes;

  DscBlockForward(const DscBlockArguments& block_, int threads, void* workspace, const DscTiling& tiling)
      : block(block_),
        slices(block.y.sizes[0], block.y.sizes[2], threads, tiling.splits),
        arena(workspace),
        middle(block, tiling, arena),
        weight(block.pw_weight, 1, true, PackedWeight<T>::Role::vectors, arena, tiling.blocks),
        y(block.y),
        lanes(std::min<std::int64_t>(threads, slices.count())) {
    if (block.pw_bias) bias = arena.take<T>(round_up(block.y.sizes[1], kLanes<T>));
  }

  struct Lane {
    DscDepthwise<T> depthwise;
    T* tile;
    T* output;

    Lane(const DscBlockForward& pass, Arena& arena)
        : depthwise(pass.middle, arena),
          tile(arena.take<T>(pass.middle.tile_size())),
          output(arena.take<T>(pass.y.tile_size(pass.middle.tile_rows))) {}
  };

  std::size_t workspace_bytes() {
    Arena measured = arena;
    for (std::int64_t lane = 0; lane < lanes; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    middle.pack(block);
    weight.pack(execution);
    if (bias != nullptr) copy_channels(block.pw_bias, T(0), 0, block.y.sizes[1], 1, bias);
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes; ++lane) scratch.emplace_back(*this, arena);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      const Range mine = part_of(slices.count(), lanes, lane);
      for (std::int64_t slice = mine.begin; slice < mine.end; ++slice) {
        const Range images = slices.images_of(slice), rows = slices.rows_of(slice);
        for (std::int64_t n = images.begin; n < images.end; ++n) {
          for (std::int64_t h = rows.begin; h < rows.end; h += middle.tile_rows) {
            run_tile(n, h, std::min(middle.tile_rows, rows.end - h), scratch[static_cast<std::size_t>(lane)]);
          }
        }
      }
    });
  }

  void run_tile(std::int64_t n, std::int64_t h, std::int64_t count, Lane& lane) {
    const std::int64_t positions = count * middle.columns();
    lane.depthwise.fill(n, h, count, lane.tile);
    apply_affine<T>(lane.tile, positions, middle.pitch(), middle.affine());

    Gemm<T> product;
    product.rows = positions;
    product.columns = block.y.sizes[1];
    product.depth = middle.channels();
    product.a = lane.tile;
    product.a_row = middle.pitch();
    weight.set_vectors(0, product);
    product.c = y.in_place ? element<T>(block.y, n, 0, h, 0) : lane.output;
    product.c_row = y.pitch();
    product.accumulate = bias != nullptr;
    for (std::int64_t p = 0; p < positions && bias != nullptr; ++p) {
      std::copy_n(bias, product.columns, product.c + p * product.c_row);
    }
    Prefetcher prefetcher;
    if (y.in_place) prefetcher.add(product.c + positions * product.c_row, positions * product.c_row * sizeof(T));
    prefetcher.start(gemm_steps(product));
    gemm(product, prefetcher);
    if (y.in_place) return;
    for (std::int64_t r = 0; r < count; ++r) {
      store_tile<T>(lane.output + r * middle.columns() * y.pitch(), block.y, y.part_of_row(n, h + r));
    }
  }
};

Config dsc_block_prior(const DscBlockArguments& block) { return dsc_prior_of(block); }
Configs dsc_block_all(const DscBlockArguments& block) { return dsc_configs_of(block); }

Plan<DscBlockArguments> dsc_block_plan(const DscBlockArguments& block, const Config& config, int threads) {
  return plan_of_pass_by_type<DscBlockForward>(block, threads, DscTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(dsc_block_prior);
HWY_EXPORT(dsc_block_all);
HWY_EXPORT(dsc_block_plan);

tuning::Configs configs(const DscBlockArguments& block) { return HWY_DYNAMIC_DISPATCH(dsc_block_all)(block); }

/// Pass 1: DW in registers, of which only the statistics stay.
DepthwiseArguments statistics_pass(const DscBlockArguments& block) {
  DepthwiseArguments depthwise = depthwise_of(block);
  depthwise.y.data = nullptr;
  depthwise.statistics = statistics_of(block, block.scale, block.shift);
  return depthwise;
}

Plan<DscBlockArguments> plan_both_passes(const DscBlockArguments& block, const tuning::Config& config, int threads) {
  tuning::check_listed("cpu_fused", block, config, dsc_block_cpu_prior(block), configs);
  Plan<DscBlockArguments> second = HWY_DYNAMIC_DISPATCH(dsc_block_plan)(block, config, threads);
  if (!block.training) return second;
  auto first = plan_depthwise_conv2d(statistics_pass(block), threads);
  const std::size_t workspace_bytes = std::max(first.workspace_bytes, second.workspace_bytes);
  return {workspace_bytes, [first = std::move(first), second = std::move(second)](const DscBlockArguments& like,
                                                                                  const Execution& execution) {
            first.run(statistics_pass(like), execution);
            second.unchecked_run(like, execution);
          }};
}

}  // namespace

tuning::Config dsc_block_cpu_prior(const DscBlockArguments& block) {
  return HWY_DYNAMIC_DISPATCH(dsc_block_prior)(block);
}

tuning::Kernel<DscBlockArguments> dsc_block_cpu() {
  return {
      .name = "cpu_fused",
      .unsupported =
          [](const DscBlockArguments& block) {
            const std::string device = needs_device(Device::cpu, block.x.device);
            if (!device.empty()) return device;
            if (block.epilogue) return std::string("there is an epilogue");
            if (block.d) return std::string("d is to be stored, which it keeps to itself");
            return needs_dense_pointwise(block);
          },
      .configs = configs,
      .plan = plan_both_passes,
  };
}

}  // namespace fusedsc
#endif
