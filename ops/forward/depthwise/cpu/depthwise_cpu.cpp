#include "fusedsc/forward/depthwise/cpu/depthwise_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/forward/depthwise/cpu/depthwise_cpu.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/cpu/streams.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_rows-inl.h"
#include "fusedsc/runtime/pass-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Everything a forward pass keeps in the workspace, and how it is cut up.
template <class T>
struct DepthwiseForward {
  const DepthwiseArguments& arguments;
  Slices slices;
  DepthwisePlan<T> plan;
  Arena arena;
  DepthwiseParameters<T> parameters;
  bool store_direct;
  bool streams;              ///< y goes around the caches
  TensorView joined_y;       ///< y with each image's rows joined into one, where they follow each other in memory
  std::int64_t stored_rows;  ///< output rows kept before they are stored
  std::int64_t lanes;
  T* mean = nullptr;  ///< [slice][block][pitch], likewise m2: the statistics of each slice
  T* m2 = nullptr;
  T* epilogue_scale = nullptr;
  T* epilogue_shift = nullptr;

  DepthwiseForward(const DepthwiseArguments& arguments_, int threads, void* workspace, const DepthwiseTiling& tiling)
      : arguments(arguments_),
        slices(arguments.y.sizes[0], arguments.y.sizes[2], threads, tiling.splits),
        plan(arguments, slices.missing_parts(), tiling),
        arena(workspace),
        parameters(plan.blocks, plan.multiplier, arguments.window, static_cast<bool>(arguments.bias),
                   arguments.prologue, arena),
        store_direct(arguments.y.data != nullptr && !arguments.epilogue && is_tile<T>(arguments.y) &&
                     plan.blocks.block % kLanes<T> == 0),
        streams(store_direct && plan.three_by_three &&
                has_whole_lines(arguments.y, kLanes<T> * static_cast<std::int64_t>(sizeof(T))) &&
                streams_pay(arguments.y.elements() * static_cast<std::int64_t>(sizeof(T)))),
        lanes(std::min<std::int64_t>(threads, slices.count() * plan.blocks.count())) {
    joined_y = arguments.y;
    if (store_direct || !join_rows(joined_y)) joined_y = {};
    stored_rows = plan.step_rows;
    if (joined_y)
      stored_rows = round_up(std::max(plan.step_rows, kStoredPositions / plan.output_columns), plan.step_rows);
    const std::int64_t size = plan.blocks.count() * plan.blocks.pitch;
    if (arguments.statistics) {
      mean = arena.take<T>(slices.count() * size);
      m2 = arena.take<T>(slices.count() * size);
    }
    if (arguments.epilogue) {
      epilogue_scale = arena.take<T>(size);
      epilogue_shift = arena.take<T>(size);
    }
  }

  /// Enough for whole cache lines of a contiguous tensor, even where its rows are short.
  static constexpr std::int64_t kStoredPositions = 64;

  /// One lane's scratch: carved from the workspace in the order of the lanes.
  struct Lane {
    DepthwiseRows<T> rows;
    T* output = nullptr;    ///< [stored_rows][output_columns][pitch]
    T* residual = nullptr;  ///< [output_columns][pitch]

    Lane(const DepthwiseForward& pass, Arena& arena) : rows(pass.arguments, pass.plan, pass.parameters, arena) {
      const std::int64_t row = pass.plan.output_columns * pass.plan.blocks.pitch;
      if (!pass.store_direct) output = arena.take<T>(pass.stored_rows * row);
      if (pass.arguments.epilogue.residual) residual = arena.take<T>(row);
    }
  };

  std::size_t workspace_bytes() {
    Arena measured = arena;
    for (std::int64_t lane = 0; lane < lanes; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    parameters.pack(arguments.weight, arguments.bias, arguments.prologue);
    for (std::int64_t b = 0; epilogue_scale != nullptr && b < plan.blocks.count(); ++b) {
      const std::int64_t first = plan.blocks.first(b), size = plan.blocks.size(b), at = b * plan.blocks.pitch;
      copy_channels(arguments.epilogue.scale, T(1), first, size, 1, epilogue_scale + at);
      copy_channels(arguments.epilogue.shift, T(0), first, size, 1, epilogue_shift + at);
    }
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes; ++lane) scratch.emplace_back(*this, arena);
    const std::int64_t blocks = plan.blocks.count();
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      const Range tasks = part_of(slices.count() * blocks, lanes, lane);
      for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
        run_task(task / blocks, task % blocks, scratch[static_cast<std::size_t>(lane)]);
      }
      if (streams) hwy::FlushStream();
    });
    if (arguments.statistics) merge_statistics();
  }

  Moments<T> moments_of(std::int64_t slice, std::int64_t block) const {
    if (mean == nullptr) return {};
    const std::int64_t at = (slice * plan.blocks.count() + block) * plan.blocks.pitch;
    return {mean + at, m2 + at, 0};
  }

  void run_task(std::int64_t slice, std::int64_t block, Lane& lane) {
    const Range images = slices.images_of(slice), rows = slices.rows_of(slice);
    Moments<T> moments = moments_of(slice, block);
    if (moments) moments.clear(plan.blocks.pitch);
    for (std::int64_t n = images.begin; n < images.end; ++n) {
      lane.rows.begin(n, block);
      for (std::int64_t h = rows.begin; h < rows.end; h += stored_rows) {
        run_rows(n, {h, std::min(h + stored_rows, rows.end)}, block, lane, moments);
      }
    }
  }

  void run_rows(std::int64_t n, Range rows, std::int64_t block, Lane& lane, Moments<T>& moments) {
    const std::int64_t first = plan.blocks.first(block), pitch = plan.blocks.template padded<T>(block);
    const std::int64_t row_size = plan.output_columns * pitch;
    const bool stored = arguments.y.data != nullptr;
    for (std::int64_t h = rows.begin; h < rows.end; h += plan.step_rows) {
      const std::int64_t count = std::min(plan.step_rows, rows.end - h);
      T* outputs[kDepthwiseRows];
      for (std::int64_t r = 0; r < count; ++r) {
        outputs[r] =
            store_direct ? element<T>(arguments.y, n, first, h + r, 0) : lane.output + (h + r - rows.begin) * row_size;
      }
      BlockOutput<T> output{stored ? outputs : nullptr, pitch};
      if (store_direct) {
        output = {output.rows, arguments.y.strides[3],
                  stored && plan.fetches_ahead && !streams ? count * arguments.y.strides[2] : 0, streams};
      }
      lane.rows.compute(h, count, output, moments);
    }
    if (!stored || store_direct) return;
    TilePart part{.image = n,
                  .row = rows.begin,
                  .positions = plan.output_columns,
                  .channel = first,
                  .channels = plan.blocks.size(block)};
    for (; part.row < rows.end; ++part.row)
      finish_row(lane.output + (part.row - rows.begin) * row_size, part, block, lane);
    if (joined_y) {
      part.row = 0;
      part.column = rows.begin * plan.output_columns;
      part.positions = rows.size() * plan.output_columns;
      return store_tile<T>(lane.output, joined_y, part);
    }
    for (part.row = rows.begin; part.row < rows.end; ++part.row) {
      store_tile<T>(lane.output + (part.row - rows.begin) * row_size, arguments.y, part);
    }
  }

  /// The inference epilogue on one row in scratch.
  void finish_row(T* row, const TilePart& part, std::int64_t block, Lane& lane) {
    if (epilogue_scale != nullptr) {
      const std::int64_t at = block * plan.blocks.pitch;
      apply_affine<T>(row, part.positions, part.channels,
                      {epilogue_scale + at, epilogue_shift + at, arguments.epilogue.activation});
    }
    if (lane.residual == nullptr) return;
    load_tile<T>(arguments.epilogue.residual, part, {}, lane.residual);
    const std::int64_t size = part.positions * round_up(part.channels, kLanes<T>);
    for (std::int64_t i = 0; i < size; i += kLanes<T>) {
      store_as<T>(hn::Add(load_as<T>(row + i), load_as<T>(lane.residual + i)), row + i);
    }
  }

  /// Adds the slices in their order, into the first one's place, and copies the result out.
  void merge_statistics() {
    for (std::int64_t b = 0; b < plan.blocks.count(); ++b) {
      const std::int64_t pitch = plan.blocks.template padded<T>(b);
      Moments<T> total = moments_of(0, b);
      for (std::int64_t s = 0; s < slices.count(); ++s) {
        Moments<T> slice = moments_of(s, b);
        slice.count = slices.images_of(s).size() * slices.rows_of(s).size() * plan.output_columns;
        if (s == 0) total.count = slice.count;
        else total.add(slice, pitch);
      }
      const std::size_t bytes = static_cast<std::size_t>(plan.blocks.size(b)) * sizeof(T);
      std::memcpy(static_cast<T*>(arguments.statistics.mean.data) + plan.blocks.first(b), total.mean, bytes);
      std::memcpy(static_cast<T*>(arguments.statistics.m2.data) + plan.blocks.first(b), total.m2, bytes);
    }
  }
};

Config depthwise_prior(const DepthwiseArguments& arguments) {
  return (arguments.x.dtype == DataType::float64 ? prior_tiling<double>(arguments) : prior_tiling<float>(arguments))
      .config();
}

template <class T>
Configs depthwise_configs(const DepthwiseArguments& arguments) {
  constexpr std::int64_t kNarrowColumns = kManyRegisters ? 4 : 3;
  const DepthwiseTiling prior = prior_tiling<T>(arguments);
  tuning::Variants variants(prior.config());
  const auto blocks_of = [&](const DepthwiseTiling& tiling) {
    const Slices slices(arguments.y.sizes[0], arguments.y.sizes[2], 1, tiling.splits);
    return DepthwisePlan<T>(arguments, slices.missing_parts(), tiling).blocks.block;
  };
  // Channels and splits, of which several may come to the same.
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  for (const std::int64_t splits : {prior.splits, prior.splits / 4, std::int64_t{1}}) {
    for (const std::int64_t most : {prior.channels, prior.channels / 2, prior.channels * 2}) {
      DepthwiseTiling tiling = prior;
      tiling.channels = std::clamp<std::int64_t>(round_up(most, kLanes<T>), 1, arguments.weight.sizes[0]);
      tiling.splits = splits;
      const std::pair cut(Slices(arguments.y.sizes[0], arguments.y.sizes[2], 1, splits).count(), blocks_of(tiling));
      if (std::find(seen.begin(), seen.end(), cut) != seen.end()) continue;
      seen.push_back(cut);
      if (most == prior.channels) variants.vary(Knob::splits, splits);
      else variants.add(tiling.config());
    }
  }
  if (!is_three_by_three(arguments.window)) return variants.configs();
  for (const std::int64_t columns : kDepthwiseColumns) {
    const std::int64_t width = arguments.y.sizes[3];
    if (columns <= 2 || next_block_columns(columns, width) == next_block_columns(prior.columns, width)) continue;
    DepthwiseTiling narrow = prior;
    narrow.columns = columns;
    variants.add(narrow.config());
    narrow.splits /= 4;
    if (columns == kNarrowColumns) variants.add(narrow.config());
  }
  const std::int64_t stride = arguments.window.stride[0];
  DepthwiseTiling other = prior;
  if (reads_input_itself<T>(arguments)) {
    other.ahead = prior.ahead > 0 ? 0 : prior.rows * stride;
    variants.add(other.config());
    other.splits /= 4;
    variants.add(other.config());
  }
  other = prior;
  other.rows = 1;
  other.ahead = prior.ahead > 0 ? stride : 0;
  variants.add(other.config());
  return variants.configs();
}

Configs depthwise_all(const DepthwiseArguments& arguments) {
  return arguments.x.dtype == DataType::float64 ? depthwise_configs<double>(arguments)
                                                : depthwise_configs<float>(arguments);
}

Plan<DepthwiseArguments> depthwise_plan(const DepthwiseArguments& arguments, const Config& config, int threads) {
  return plan_of_pass_by_type<DepthwiseForward>(arguments, threads, DepthwiseTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(depthwise_prior);
HWY_EXPORT(depthwise_all);
HWY_EXPORT(depthwise_plan);

tuning::Configs configs(const DepthwiseArguments& a) { return HWY_DYNAMIC_DISPATCH(depthwise_all)(a); }

}  // namespace

tuning::Config depthwise_cpu_prior(const DepthwiseArguments& a) { return HWY_DYNAMIC_DISPATCH(depthwise_prior)(a); }

tuning::Kernel<DepthwiseArguments> depthwise_cpu() {
  return {
      .name = "cpu",
      .unsupported = [](const DepthwiseArguments& a) { return needs_device(Device::cpu, a.x.device); },
      .configs = configs,
      .plan =
          [](const DepthwiseArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu", a, config, depthwise_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(depthwise_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
