#include "fusedsc/forward/depthwise/cpu/depthwise_planes_cpu.h"

#include "fusedsc/common/cpu/targets.h"
#include "fusedsc/forward/depthwise/cpu/plane_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/forward/depthwise/cpu/depthwise_planes_cpu.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/common/cpu/slice_sums.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_plan-inl.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_plane_kernel-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

template <class T>
std::int64_t source_row_bytes(const DepthwiseArguments& arguments) {
  return arguments.window.stride[0] * (arguments.x.sizes[3] + kLanes<T>)*std::int64_t{sizeof(T)};
}

template <class T>
PlaneWork work_of(const DepthwiseArguments& arguments) {
  return {.images = arguments.y.sizes[0],
          .channels = arguments.y.sizes[1],
          .rows = arguments.y.sizes[2],
          .row_bytes = source_row_bytes<T>(arguments),
          .plane_bytes = arguments.x.strides[1] * std::int64_t{sizeof(T)},
          .unit = kPlaneRows[0],
          .load_bytes = std::max<std::int64_t>(arguments.y.sizes[2] * source_row_bytes<T>(arguments), 1),
          .can_fetch = is_three_by_three(arguments.window)};
}

/// A forward pass over planes: some rows of a channel are loaded with their padding, convolved, and finished while they
/// are in the first-level cache.
template <class T>
struct DepthwisePlanes {
  const DepthwiseArguments& arguments;
  Window window;
  std::int64_t tap_count;
  std::int64_t rows, columns;  ///< of the output
  InputPlanes<T> input;
  PlaneTasks tasks;
  std::int64_t chunk_rows;    ///< output rows of a plane that are computed together
  std::int64_t chunk_planes;  ///< planes whose rows are loaded together, where they are few
  bool three_by_three;
  bool fetches;       ///< what the next part reads and writes
  bool store_direct;  ///< the kernels write y itself
  std::int64_t lanes;
  Arena arena;
  T* mean = nullptr;  ///< [group][channel], likewise m2: the statistics of each group of images
  T* m2 = nullptr;

  DepthwisePlanes(const DepthwiseArguments& arguments_, int threads, void* workspace, const PlaneTiling& tiling)
      : arguments(arguments_),
        window(arguments.window),
        tap_count(window.kernel[0] * window.kernel[1]),
        rows(arguments.y.sizes[2]),
        columns(arguments.y.sizes[3]),
        input{arguments.x, arguments.prologue, channel_multiplier(arguments.x, arguments.weight)},
        tasks(arguments.y.sizes[0], arguments.y.sizes[1], arguments.x.strides[1] * std::int64_t{sizeof(T)},
              tiling.splits),
        chunk_rows(tiling.rows),
        chunk_planes(tiling.channels),
        three_by_three(is_three_by_three(window)),
        fetches(three_by_three && tiling.ahead > 0),
        store_direct(arguments.y.data != nullptr && has_dense_planes<T>(arguments.y)),
        lanes(std::min<std::int64_t>(threads, tasks.count())),
        arena(workspace) {
    if (!arguments.statistics) return;
    mean = arena.take<T>(tasks.groups * tasks.channels);
    m2 = arena.take<T>(tasks.groups * tasks.channels);
  }

  std::int64_t source_rows(std::int64_t output_rows) const {
    return (output_rows - 1) * window.stride[0] + (window.kernel[0] - 1) * window.dilation[0] + 1;
  }

  /// One lane's scratch.
  struct Lane {
    PaddedPlanes<T> source;
    PlaneTap* taps;
    T* weights;  ///< of a task's channels
    T* bias;
    T* output = nullptr;    ///< a chunk's rows, where they are not stored at once
    T* residual = nullptr;  ///< likewise

    Lane(const DepthwisePlanes& pass, Arena& arena)
        : source(pass.chunk_planes, pass.source_rows(pass.chunk_rows), pass.window.stride[1], pass.window.padding.left,
                 pass.arguments.x.sizes[3],
                 (pass.window.kernel[1] - 1) * pass.window.dilation[1] +
                     pass.window.stride[1] * round_up(pass.columns, kLanes<T>),
                 arena),
          taps(arena.take<PlaneTap>(pass.tap_count)),
          weights(arena.take<T>(pass.tasks.block * pass.tap_count)),
          bias(arena.take<T>(pass.tasks.block)) {
      if (!pass.store_direct) output = arena.take<T>(pass.chunk_planes * pass.chunk_rows * pass.columns);
      if (pass.arguments.epilogue.residual) residual = arena.take<T>(pass.chunk_rows * pass.columns + kLanes<T>);
    }
  };

  std::size_t workspace_bytes() {
    Arena measured = arena;
    for (std::int64_t lane = 0; lane < lanes; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes; ++lane) scratch.emplace_back(*this, arena);
    run_lanes(execution, lanes, [&](std::int64_t index) {
      Lane& lane = scratch[static_cast<std::size_t>(index)];
      lane.source.clear();
      for (std::int64_t kh = 0, tap = 0; kh < window.kernel[0]; ++kh) {
        for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw, ++tap) {
          lane.taps[tap] = {tap, lane.source.offset(kh * window.dilation[0], kw * window.dilation[1])};
        }
      }
      const Range own = part_of(tasks.count(), lanes, index);
      for (std::int64_t task = own.begin; task < own.end; ++task) run_task(task, lane);
    });
    if (!arguments.statistics) return;
    const auto count_of = [&](std::int64_t group) { return tasks.images_of(group).size() * rows * columns; };
    merge_slices(mean, m2, tasks.groups, tasks.channels, tasks.channels, count_of,
                 static_cast<T*>(arguments.statistics.mean.data), static_cast<T*>(arguments.statistics.m2.data));
  }

  void run_task(std::int64_t task, Lane& lane) {
    const Range images = tasks.images_of(tasks.group_of(task)), channels = tasks.channels_of(task);
    const std::int64_t group = tasks.group_of(task) * tasks.channels;
    if (mean != nullptr) {
      std::fill(mean + group + channels.begin, mean + group + channels.end, T(0));
      std::fill(m2 + group + channels.begin, m2 + group + channels.end, T(0));
    }
    for (std::int64_t i = 0; i < channels.size(); ++i) {
      pack_taps(arguments.weight, channels.begin + i, false, lane.weights + i * tap_count);
      lane.bias[i] = channel_value<T>(arguments.bias, channels.begin + i, T(0));
    }
    const PlaneParts parts{images, channels, rows, chunk_rows, chunk_planes};
    const auto queue = [&](const PlanePart& part, const PlanePart& next, Prefetcher& prefetcher) {
      prefetch(part, next, prefetcher);
    };
    parts.for_each(fetches, queue, [&](const PlanePart& part, auto& prefetcher) {
      run_chunk(part, part.channels.begin - channels.begin, lane, prefetcher);
      if (mean != nullptr) add_statistics(part, (part.image - images.begin) * rows + part.rows.begin, group, lane);
      if (arguments.epilogue || !store_direct) finish(part, lane);
    });
  }

  /// What the next part reads and writes, while this one is computed.
  void prefetch(const PlanePart& part, const PlanePart& next, Prefetcher& prefetcher) const {
    prefetch_rows(prefetcher, arguments.x, next, {next.rows.begin * window.stride[0], next.rows.end * window.stride[0]},
                  input.multiplier);
    if (store_direct) prefetch_rows(prefetcher, arguments.y, next, next.rows);
    prefetcher.start(part.rows.size() * ((columns + kLanes<T> - 1) / kLanes<T>));
  }

  /// The raw output of a chunk's planes goes here.
  PlaneTarget<T> output_of(const PlanePart& part, const Lane& lane) const {
    if (!store_direct) return {lane.output, columns, chunk_rows * columns};
    return {element<T>(arguments.y, part.image, part.channels.begin, part.rows.begin, 0), columns,
            arguments.y.strides[1]};
  }

  /// `of_task` counts the chunk's first channel among its task's.
  template <class Prefetching>
  void run_chunk(const PlanePart& part, std::int64_t of_task, Lane& lane, Prefetching& prefetcher) const {
    const std::int64_t top = part.rows.begin * window.stride[0] - window.padding.top;
    lane.source.load(input, {part.image, part.channels, {top, top + source_rows(part.rows.size())}});
    const PlaneTarget<T> output = output_of(part, lane);
    const std::int64_t pitch = lane.source.pitch(), row_step = window.stride[0] * pitch;
    const T* weights = lane.weights + of_task * tap_count;
    for (std::int64_t i = 0; i < part.channels.size(); ++i, weights += tap_count) {
      const T* const source = lane.source.plane(i);
      const T bias = lane.bias[of_task + i];
      const PlaneRows<T> to{output.data + i * output.plane_pitch, columns, part.rows.size(), columns};
      if (!three_by_three) convolve_taps<T>({source, row_step, lane.taps, tap_count}, weights, bias, to);
      else if (window.stride[0] == 1) convolve_3x3<T, 1>({source, pitch, 0}, weights, bias, to, prefetcher);
      else convolve_3x3<T, 2>({source, pitch, lane.source.offset(0, 1)}, weights, bias, to, prefetcher);
    }
  }

  /// `seen` rows of these channels are in the statistics of their `group` already.
  void add_statistics(const PlanePart& part, std::int64_t seen, std::int64_t group, const Lane& lane) const {
    const PlaneTarget<T> output = output_of(part, lane);
    for (std::int64_t c = part.channels.begin; c < part.channels.end; ++c) {
      const Patch<const T> raw{output.data + (c - part.channels.begin) * output.plane_pitch, 0};
      Moments<T> moments{mean + group + c, m2 + group + c, seen * columns};
      add_moments<ChannelMajor<T>, T>(raw, {part.rows.size() * columns, 1}, moments);
    }
  }

  /// Applies the epilogue and stores what is not stored yet.
  void finish(const PlanePart& part, const Lane& lane) const {
    using Major = ChannelMajor<T>;
    const PlaneTarget<T> output = output_of(part, lane);
    const Epilogue& epilogue = arguments.epilogue;
    for (std::int64_t c = part.channels.begin; c < part.channels.end; ++c) {
      const Patch<T> patch{output.data + (c - part.channels.begin) * output.plane_pitch, 0};
      if (epilogue) {
        if (lane.residual != nullptr) {
          InputPlanes<T>{epilogue.residual, kNoPrologue}.load({part.image, {c, c + 1}, part.rows},
                                                              {lane.residual, columns, 0});
        }
        const T scale = channel_value<T>(epilogue.scale, c, T(1)), shift = channel_value<T>(epilogue.shift, c, T(0));
        apply_epilogue<Major, T>(patch, {&scale, &shift, epilogue.activation}, {lane.residual, 0},
                                 {part.rows.size() * columns, 1}, patch);
      }
      for (std::int64_t h = 0; !store_direct && arguments.y.data != nullptr && h < part.rows.size(); ++h) {
        store_row(patch.data + h * columns, arguments.y, part.image, c, part.rows.begin + h);
      }
    }
  }
};

PlaneWork depthwise_planes_work(const DepthwiseArguments& arguments) {
  return arguments.x.dtype == DataType::float64 ? work_of<double>(arguments) : work_of<float>(arguments);
}
Config depthwise_planes_prior(const DepthwiseArguments& arguments) {
  return depthwise_planes_work(arguments).prior().config();
}
Configs depthwise_planes_all(const DepthwiseArguments& arguments) { return depthwise_planes_work(arguments).configs(); }

Plan<DepthwiseArguments> depthwise_planes_plan(const DepthwiseArguments& arguments, const Config& config, int threads) {
  return plan_of_pass_by_type<DepthwisePlanes>(arguments, threads, PlaneTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(depthwise_planes_prior);
HWY_EXPORT(depthwise_planes_all);
HWY_EXPORT(depthwise_planes_plan);

std::string why_not_planes(const DepthwiseArguments& arguments) {
  std::string reason = needs_device(Device::cpu, arguments.x.device);
  if (reason.empty()) reason = needs_planes(arguments.window, {{"x", arguments.x}, {"y", arguments.y}});
  if (reason.empty() && arguments.epilogue.residual) {
    reason = needs_planes(arguments.window, {{"epilogue.residual", arguments.epilogue.residual}});
  }
  return reason;
}

tuning::Configs configs(const DepthwiseArguments& a) { return HWY_DYNAMIC_DISPATCH(depthwise_planes_all)(a); }

}  // namespace

tuning::Config depthwise_planes_cpu_prior(const DepthwiseArguments& a) {
  return HWY_DYNAMIC_DISPATCH(depthwise_planes_prior)(a);
}

tuning::Kernel<DepthwiseArguments> depthwise_planes_cpu() {
  return {
      .name = "cpu_planes",
      .unsupported = why_not_planes,
      .configs = configs,
      .plan =
          [](const DepthwiseArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu_planes", a, config, depthwise_planes_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(depthwise_planes_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
