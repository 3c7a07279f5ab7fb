/// The depthwise backward pass over planes.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PLANES_INL_H_
#undef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PLANES_INL_H_
#else
#define FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PLANES_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <vector>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise/cpu/depthwise_plane_classes-inl.h"
#include "fusedsc/common/cpu/slice_sums.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

template <class T>
PlaneWork work_of(const DepthwiseBackwardArguments& arguments) {
  const Sizes& x = arguments.x.sizes;
  const Window& window = arguments.window;
  const std::int64_t row_bytes = (x[3] + kLanes<T>)*std::int64_t{sizeof(T)};
  const bool is_wanted = arguments.grad_x.data != nullptr || arguments.grad_weight.data != nullptr;
  return {.images = x[0],
          .channels = x[1],
          .rows = x[2],
          .row_bytes = row_bytes,
          .plane_bytes = x[2] * x[3] * std::int64_t{sizeof(T)},
          .unit = window.stride[0] == 1 ? kPlaneRows[0] : window.stride[0],
          .load_bytes = x[2] * row_bytes + 1,
          .can_fetch = is_wanted && is_three_by_three(window) && window.stride[0] == 1 && window.stride[1] == 1};
}

/// A backward pass over planes: the gradients that some input rows of a channel pull from are loaded with their
/// padding; from them come the rows' gradients and, with the inputs, their share of the weight's.
template <class T>
struct DepthwiseBackwardPlanes {
  const DepthwiseBackwardArguments& arguments;
  PullGeometry geometry;
  std::int64_t tap_count;
  std::int64_t rows, columns;  ///< of the input
  InputPlanes<T> input, raw_input;
  GradientPlanes<T> gradient;
  PlaneTasks tasks;
  std::int64_t chunk_rows;    ///< input rows of a plane that are computed together: a multiple of the vertical stride
  std::int64_t chunk_planes;  ///< planes whose rows are loaded together, where they are few
  bool fetches;               ///< what the next part reads and writes
  bool want_input, want_weight;
  bool input_direct;    ///< the kernels read x itself
  bool store_direct;    ///< grad_x is written in place
  bool three_by_three;  ///< the 3x3 kernels at stride 1, which take their taps rotated by 180°
  std::int64_t lanes;
  Arena arena;
  T* grad_weight = nullptr;  ///< [group][channel][tap]
  T* grad_bias = nullptr;    ///< [group][channel]
  T* sums = nullptr;         ///< [2][group][channel]: sum of g, sum of g*(x - mean)

  DepthwiseBackwardPlanes(const DepthwiseBackwardArguments& arguments_, int threads, void* workspace,
                          const PlaneTiling& tiling)
      : arguments(arguments_),
        geometry(arguments.window, arguments.x.sizes[3], kLanes<T>),
        tap_count(geometry.tap_count()),
        rows(arguments.x.sizes[2]),
        columns(arguments.x.sizes[3]),
        input{arguments.x, arguments.prologue},
        raw_input{arguments.x, kNoPrologue},
        gradient{arguments.grad_y, arguments.gradient_prologue},
        tasks(arguments.x.sizes[0], arguments.x.sizes[1], rows * columns * std::int64_t{sizeof(T)}, tiling.splits),
        chunk_rows(tiling.rows),
        chunk_planes(tiling.channels),
        fetches(tiling.ahead > 0),
        want_input(arguments.grad_x.data != nullptr),
        want_weight(arguments.grad_weight.data != nullptr),
        input_direct(!arguments.prologue && geometry.window.stride[1] == 1 && arguments.x.dtype == kComputeType<T>),
        store_direct(want_input && has_dense_planes<T>(arguments.grad_x)),
        three_by_three(is_three_by_three(geometry.window) && geometry.classes() == 1),
        lanes(std::min<std::int64_t>(threads, tasks.count())),
        arena(workspace) {
    const std::int64_t partial = tasks.groups * tasks.channels;
    if (want_weight) grad_weight = arena.take<T>(partial * tap_count);
    if (arguments.grad_bias) grad_bias = arena.take<T>(partial);
    if (arguments.sums) sums = arena.take<T>(2 * partial);
  }

  /// One lane's scratch.
  struct Lane {
    PaddedPlanes<T> gradients;
    PaddedPlanes<T> inputs;  ///< where x is not read in place; every other column apart
    PositionClass* classes;
    PlaneTap* taps;
    T* weights;                 ///< [channel of a task][tap]
    T* weight_sums = nullptr;   ///< likewise, a vector of sums each
    T* grad_input = nullptr;    ///< a chunk's rows of grad_x, where they are not written in place
    T* raw = nullptr;           ///< a chunk's rows of x or of grad_add
    T* gradient_row = nullptr;  ///< for the bias

    Lane(const DepthwiseBackwardPlanes& pass, Arena& arena)
        : gradients(pass.chunk_planes, pass.geometry.gradient_rows({0, pass.chunk_rows}).size(), 1, pass.geometry.left,
                    pass.arguments.grad_y.sizes[3], pass.geometry.reach, arena),
          inputs(pass.loads_input() ? pass.chunk_planes : 0, pass.chunk_rows, pass.geometry.window.stride[1], 0,
                 pass.columns, pass.columns, arena),
          classes(arena.take<PositionClass>(pass.geometry.classes())),
          taps(arena.take<PlaneTap>(pass.tap_count)),
          weights(arena.take<T>(pass.tasks.block * pass.tap_count)) {
      const std::int64_t chunk = pass.chunk_rows * pass.columns + kLanes<T>;
      if (pass.want_weight) weight_sums = arena.take<T>(pass.tasks.block * pass.tap_count * kLanes<T>);
      if (pass.want_input && !pass.store_direct) grad_input = arena.take<T>(chunk);
      if (pass.arguments.prologue || pass.arguments.grad_add) raw = arena.take<T>(chunk);
      if (pass.grad_bias != nullptr) gradient_row = arena.take<T>(round_up(pass.arguments.grad_y.sizes[3], kLanes<T>));
    }
  };

  bool loads_input() const { return want_weight && !input_direct; }

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
      lane.gradients.clear();
      lane.inputs.clear();
      geometry.list(lane.gradients.pitch(), lane.classes, lane.taps);
      const Range own = part_of(tasks.count(), lanes, index);
      for (std::int64_t task = own.begin; task < own.end; ++task) run_task(task, lane);
    });
    reduce();
  }

  void run_task(std::int64_t task, Lane& lane) {
    const Range images = tasks.images_of(tasks.group_of(task)), channels = tasks.channels_of(task);
    const std::int64_t first = tasks.group_of(task) * tasks.channels + channels.begin;
    for (std::int64_t i = 0; i < channels.size(); ++i) {
      pack_taps(arguments.weight, channels.begin + i, three_by_three, lane.weights + i * tap_count);
    }
    if (want_weight) std::fill_n(lane.weight_sums, channels.size() * tap_count * kLanes<T>, T(0));
    if (grad_bias != nullptr) std::fill_n(grad_bias + first, channels.size(), T(0));
    for (const int which : {0, 1}) {
      if (sums != nullptr) std::fill_n(sums_of(which) + first, channels.size(), T(0));
    }
    const PlaneParts parts{images, channels, rows, chunk_rows, chunk_planes};
    const bool is_wanted = want_input || want_weight;
    const auto queue = [&](const PlanePart& part, const PlanePart& next, Prefetcher& prefetcher) {
      prefetch(part, next, prefetcher);
    };
    parts.for_each(fetches, queue, [&](const PlanePart& part, auto& prefetcher) {
      if (is_wanted) run_chunk(part, channels.begin, first, lane, prefetcher);
      for (std::int64_t i = 0; grad_bias != nullptr && parts.ends_image(part) && i < channels.size(); ++i) {
        grad_bias[first + i] += plane_sum(part.image, channels.begin + i, lane.gradient_row);
      }
    });
    for (std::int64_t i = 0; want_weight && i < channels.size() * tap_count; ++i) {
      const auto total = hn::SumOfLanes(Tag<T>(), load_as<T>(lane.weight_sums + i * kLanes<T>));
      grad_weight[first * tap_count + i] = hn::GetLane(total);
    }
  }

  T* sums_of(int which) const { return sums + which * tasks.groups * tasks.channels; }

  /// What the next part reads and writes, while this one is computed.
  void prefetch(const PlanePart& part, const PlanePart& next, Prefetcher& prefetcher) const {
    prefetch_rows(prefetcher, arguments.grad_y, next, next.rows);
    if (want_weight) prefetch_rows(prefetcher, arguments.x, next, next.rows);
    if (store_direct) prefetch_rows(prefetcher, arguments.grad_x, next, next.rows);
    const std::int64_t steps = part.rows.size() * ((columns + kLanes<T> - 1) / kLanes<T>);
    prefetcher.start(want_input && want_weight ? 2 * steps : steps);
  }

  /// `first_channel` is the task's; `first_sum` is where its sums begin.
  template <class Prefetching>
  void run_chunk(const PlanePart& part, std::int64_t first_channel, std::int64_t first_sum, Lane& lane,
                 Prefetching& prefetcher) {
    lane.gradients.load(gradient, {part.image, part.channels, geometry.gradient_rows(part.rows)});
    if (loads_input()) lane.inputs.load(input, part, store_direct ? arguments.grad_x : TensorView());
    for (std::int64_t c = part.channels.begin; c < part.channels.end; ++c) {
      const std::int64_t index = c - part.channels.begin, of_task = c - first_channel;
      const PlanePart plane{part.image, {c, c + 1}, part.rows};
      const T* const source = lane.gradients.plane(index);
      if (want_weight)
        weigh(plane, source, index, lane, lane.weight_sums + of_task * tap_count * kLanes<T>, prefetcher);
      if (!want_input) continue;
      T* const to = store_direct ? element<T>(arguments.grad_x, part.image, c, part.rows.begin, 0) : lane.grad_input;
      pull(plane, source, lane.weights + of_task * tap_count, lane, to, prefetcher);
      finish(plane, to, first_sum + of_task, lane);
    }
  }

  /// Adds the plane's part to the sums of its weight's gradient.
  template <class Prefetching>
  void weigh(const PlanePart& plane, const T* source, std::int64_t index, const Lane& lane, T* weight_sums,
             Prefetching& prefetcher) const {
    const Window& window = geometry.window;
    for (std::int64_t i = 0; i < geometry.classes(); ++i) {
      const PositionClass& positions = lane.classes[i];
      PlaneRows<const T> values{nullptr, 0, geometry.class_rows(plane.rows.size(), positions.row),
                                geometry.class_columns(positions.column)};
      if (input_direct) {
        values.data = element<T>(arguments.x, plane.image, plane.channels.begin, plane.rows.begin + positions.row, 0);
        values.pitch = window.stride[0] * arguments.x.strides[2];
      } else {
        values.data = lane.inputs.plane(index) + lane.inputs.offset(positions.row, positions.column);
        values.pitch = window.stride[0] * lane.inputs.pitch();
      }
      const std::int64_t pitch = lane.gradients.pitch();
      if (three_by_three) correlate_3x3<T>(values, source + positions.taps[8].offset, pitch, weight_sums, prefetcher);
      else correlate_taps<T>(values, source, pitch, positions.taps, positions.tap_count, weight_sums);
    }
  }

  /// Computes the plane's rows of grad_x, next to each other from `to` on.
  template <class Prefetching>
  void pull(const PlanePart& plane, const T* source, const T* weights, const Lane& lane, T* to,
            Prefetching& prefetcher) const {
    const std::int64_t pitch = lane.gradients.pitch(), count = plane.rows.size();
    if (three_by_three) {
      return convolve_3x3<T, 1>({source + lane.taps[8].offset, pitch, 0}, weights, T(0), {to, columns, count, columns},
                                prefetcher);
    }
    const Window& window = geometry.window;
    const auto taps_of = [&](const PositionClass& positions) {
      return TapSource<T>{source, pitch, positions.taps, positions.tap_count};
    };
    for (std::int64_t row = 0; row < std::min(window.stride[0], count); ++row) {
      const PositionClass* positions = lane.classes + row * window.stride[1];
      const PlaneRows<T> class_rows{to + row * columns, window.stride[0] * columns, geometry.class_rows(count, row),
                                    columns};
      if (window.stride[1] == 1) convolve_taps<T>(taps_of(positions[0]), weights, T(0), class_rows);
      else convolve_taps_in_turn<T>(taps_of(positions[0]), taps_of(positions[1]), weights, class_rows);
    }
  }

  /// What is left to do with rows of grad_x: `sum` says where the channel's sums are.
  void finish(const PlanePart& plane, T* grad, std::int64_t sum, const Lane& lane) const {
    using Major = ChannelMajor<T>;
    const std::int64_t n = plane.image, c = plane.channels.begin;
    const Extent extent{plane.rows.size() * columns, 1};
    if (arguments.prologue) {
      const T scale = channel_value<T>(arguments.prologue.scale, c, T(1));
      const T shift = channel_value<T>(arguments.prologue.shift, c, T(0));
      const T mean = channel_value<T>(arguments.sums.mean, c, T(0));
      SumVectors<T> vectors;
      if (sums != nullptr) vectors = {&mean, sums_of(0) + sum, sums_of(1) + sum};
      const T* x = lane.raw;
      if (has_dense_planes<T>(arguments.x)) x = element<T>(arguments.x, n, c, plane.rows.begin, 0);
      else raw_input.load(plane, {lane.raw, columns, 0});
      apply_activation_backward<Major, T>(Patch<T>{grad, 0}, {x, 0}, {&scale, &shift, arguments.prologue.activation},
                                          vectors, extent);
    }
    if (arguments.grad_add) {
      InputPlanes<T>{arguments.grad_add, kNoPrologue}.load(plane, {lane.raw, columns, 0});
      add_patch<Major, T>({lane.raw, 0}, extent, Patch<T>{grad, 0});
    }
    for (std::int64_t h = plane.rows.begin; !store_direct && h < plane.rows.end; ++h) {
      store_row(grad + (h - plane.rows.begin) * columns, arguments.grad_x, n, c, h);
    }
  }

  T plane_sum(std::int64_t n, std::int64_t c, T* row) const {
    auto sum = hn::Zero(Tag<T>());
    for (std::int64_t h = 0; h < arguments.grad_y.sizes[2]; ++h) {
      gradient.load({n, {c, c + 1}, {h, h + 1}}, {row, 0, 0});
      for (std::int64_t w = 0; w < arguments.grad_y.sizes[3]; w += kLanes<T>) sum = hn::Add(sum, load_as<T>(row + w));
    }
    return hn::GetLane(hn::SumOfLanes(Tag<T>(), sum));
  }

  /// The groups' partial sums, added in their order.
  void reduce() const {
    const std::int64_t groups = tasks.groups, channels = tasks.channels;
    if (want_weight) {
      add_slices(grad_weight, groups, channels * tap_count, channels * tap_count, grad_weight);
      for (std::int64_t c = 0; c < channels; ++c) {
        unpack_taps(grad_weight + c * tap_count, arguments.grad_weight, c, three_by_three);
      }
    }
    if (grad_bias != nullptr) {
      add_slices(grad_bias, groups, channels, channels, grad_bias);
      with_storage<T>(arguments.grad_bias.dtype, [&]<class Storage>() {
        convert_back<T>(grad_bias, static_cast<Storage*>(arguments.grad_bias.data), channels);
      });
    }
    if (sums != nullptr) {
      add_slices(sums_of(0), groups, channels, channels, static_cast<T*>(arguments.sums.grad.data));
      add_slices(sums_of(1), groups, channels, channels, static_cast<T*>(arguments.sums.grad_times_centered.data));
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
