/// The depthwise backward pass: everything but where the output gradients come from. Shared by the plain operator,
/// which loads them, and by the fused block, which computes them.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PASS_INL_H_
#undef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PASS_INL_H_
#else
#define FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_PASS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <vector>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise/cpu/depthwise_gradient_rows-inl.h"
#include "fusedsc/backward/depthwise/cpu/depthwise_gradient_sums-inl.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/cpu/streams.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// How a backward pass is cut up, in words: "channels=96 rows=4 splits=16".
struct DepthwiseBackwardTiling {
  std::int64_t channels = 1;              ///< of a block, at most
  std::int64_t rows = 1;                  ///< of the input that kernels compute together
  std::int64_t splits = Slices::kSlices;  ///< pieces of work, at least, if there are so many

  DepthwiseBackwardTiling() = default;
  explicit DepthwiseBackwardTiling(const Config& config)
      : channels(config[Knob::channels]), rows(config[Knob::rows]), splits(config[Knob::splits]) {}

  Config config() const { return {{Knob::channels, channels}, {Knob::rows, rows}, {Knob::splits, splits}}; }
};

/// What is taken where nothing was measured; `one_block` keeps channels together.
template <class T>
DepthwiseBackwardTiling prior_tiling(const DepthwiseBackwardArguments& arguments, bool one_block = false) {
  const GradientGeometry geometry(arguments.window, arguments.x.sizes, arguments.grad_y.sizes);
  DepthwiseBackwardTiling tiling;
  tiling.rows = std::clamp<std::int64_t>(56 / std::max<std::int64_t>(geometry.input_columns, 1), 1,
                                         most_gradient_rows(arguments.window));
  const bool runs = one_block || (layout_of(arguments.x.sizes, arguments.x.strides) == Layout::channels_last &&
                                  layout_of(arguments.grad_y.sizes, arguments.grad_y.strides) == Layout::channels_last);
  const std::int64_t rows = one_block ? 0 : geometry.reach + 3;  // a few more in use for x and grad_x
  tiling.channels =
      cached_channels(arguments.weight.sizes[0], rows * geometry.ring_columns * static_cast<std::int64_t>(sizeof(T)),
                      runs ? Layout::channels_last : Layout::contiguous);
  return tiling;
}

/// Everything a backward pass keeps in the workspace, and how it is cut up. Slices are of input rows; channels are
/// counted with their repeats until a row of grad_x is stored. `Gradients` gives the output gradients:
///   Gradients(const Context&, const DepthwiseBackwardArguments&, const ChannelBlocks&, Arena&), kOneBlock;
///   pack(execution), once; Lane(const Gradients&, Arena&).load(part, block, to), which fills a tile row.
template <class T, class Gradients>
struct DepthwiseBackwardPass {
  const DepthwiseBackwardArguments& arguments;
  Slices slices;
  GradientGeometry geometry;
  std::int64_t multiplier;
  std::int64_t rows_at_once;  ///< of the input, in the kernels
  ChannelBlocks blocks;
  Arena arena;
  DepthwiseParameters<T> parameters;
  Gradients gradients;
  std::int64_t lanes;
  bool want_input, want_weight;
  bool input_direct;  ///< the kernels read x itself
  bool store_direct;  ///< the kernels write grad_x itself
  bool streams;       ///< around the caches
  DepthwiseGradientSums<T> sums;

  DepthwiseBackwardPass(const typename Gradients::Context& context, const DepthwiseBackwardArguments& arguments_,
                        int threads, void* workspace, const DepthwiseBackwardTiling& tiling)
      : arguments(arguments_),
        slices(arguments.x.sizes[0], arguments.x.sizes[2], threads, tiling.splits),
        geometry(arguments.window, arguments.x.sizes, arguments.grad_y.sizes),
        multiplier(channel_multiplier(arguments.x, arguments.weight)),
        rows_at_once(tiling.rows),
        blocks(channel_blocks<T>(arguments.weight.sizes[0], multiplier, tiling.channels,
                                 Gradients::kOneBlock ? 1 : slices.missing_parts())),
        arena(workspace),
        parameters(blocks, multiplier, arguments.window, false, arguments.prologue, arena),
        gradients(context, arguments, blocks, arena),
        lanes(std::min<std::int64_t>(threads, slices.count() * blocks.count())),
        want_input(arguments.grad_x.data != nullptr),
        want_weight(arguments.grad_weight.data != nullptr) {
    const bool whole = multiplier == 1 && blocks.block % kLanes<T> == 0;
    input_direct = whole && !arguments.prologue && is_tile<T>(arguments.x) && is_three_by_three(arguments.window);
    store_direct = whole && want_input && is_tile<T>(arguments.grad_x);
    // Nothing else is done to its rows.
    streams = store_direct && !arguments.prologue && !arguments.grad_add && is_three_by_three(arguments.window) &&
              has_whole_lines(arguments.grad_x, kLanes<T> * static_cast<std::int64_t>(sizeof(T))) &&
              streams_pay(arguments.grad_x.elements() * static_cast<std::int64_t>(sizeof(T)));
    sums = DepthwiseGradientSums<T>(arguments, blocks, parameters.tap_count, slices.count(), lanes, arena);
  }

  /// One lane's scratch. Rows are [columns][pitch].
  struct Lane {
    typename Gradients::Lane gradients;
    GradientRowKernel<T> kernel;
    PaddedRowRing<T> grad;
    PaddedRowRing<T> padded_input;
    T* bias_row = nullptr;          ///< one row of output gradients
    T* input = nullptr;             ///< [rows_at_once] rows through the prologue
    T* raw_input = nullptr;         ///< one row, for the activation's derivative
    T* grad_input = nullptr;        ///< [rows_at_once] rows
    T* stored = nullptr;            ///< one row with the repeats of each channel added up, or of grad_add
    T* task_grad_weight = nullptr;  ///< [tap][pitch] of the present task: sums of sums lose less

    Lane(const DepthwiseBackwardPass& pass, Arena& arena)
        : gradients(pass.gradients, arena),
          kernel(pass.geometry, pass.rows_at_once, arena),
          grad(kernel.ring_rows(), pass.geometry.ring_columns, pass.geometry.ring_left, pass.blocks.pitch, arena),
          padded_input(kernel.wants_padded_input() ? 1 : 0, kernel.wants_padded_input() ? kernel.padded_columns() : 0,
                       pass.arguments.window.padding.left, pass.blocks.pitch, arena) {
      const std::int64_t row = pass.geometry.input_columns * pass.blocks.pitch;
      if (pass.want_weight && !pass.input_direct && !kernel.wants_padded_input()) {
        input = arena.take<T>(kernel.rows_at_once() * row);
      }
      if (pass.want_input && pass.arguments.prologue) raw_input = arena.take<T>(row);
      if (pass.want_input && !pass.store_direct) grad_input = arena.take<T>(kernel.rows_at_once() * row);
      if (pass.want_input && (pass.multiplier > 1 || pass.arguments.grad_add)) stored = arena.take<T>(2 * row);
      if (pass.arguments.grad_bias) {
        bias_row = arena.take<T>(pass.geometry.output_columns * pass.blocks.pitch);
      }
      if (pass.want_weight) task_grad_weight = arena.take<T>(pass.parameters.tap_count * pass.blocks.pitch);
    }
  };

  std::size_t workspace_bytes() {
    Arena measured = arena;
    for (std::int64_t lane = 0; lane < lanes; ++lane) Lane(*this, measured);
    return measured.used();
  }

  void run(const Execution& execution) {
    parameters.pack(arguments.weight, {}, arguments.prologue);
    gradients.pack(execution);
    sums.copy_mean();
    std::vector<Lane> scratch;
    for (std::int64_t lane = 0; lane < lanes; ++lane) scratch.emplace_back(*this, arena);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      sums.clear_lane(lane);
      const Range tasks = part_of(slices.count() * blocks.count(), lanes, lane);
      // From the last image to the first: pointwise backward passes, which write what this one reads, go the other way,
      // and what they wrote last is still in a cache. Forward it is the other way round.
      for (std::int64_t task = tasks.end; task-- > tasks.begin;) {
        run_task(task / blocks.count(), task % blocks.count(), lane, scratch[static_cast<std::size_t>(lane)]);
      }
      if (streams) hwy::FlushStream();
    });
    sums.reduce();
  }

  void run_task(std::int64_t slice, std::int64_t block, std::int64_t lane_index, Lane& lane) {
    const std::int64_t taps_size = parameters.tap_count * blocks.pitch;
    if (want_weight) std::fill(lane.task_grad_weight, lane.task_grad_weight + taps_size, T(0));
    sums.clear(slice, block);
    const Range images = slices.images_of(slice), rows = slices.rows_of(slice);
    const std::int64_t first = blocks.first(block), channels = blocks.size(block);
    for (std::int64_t n = images.end; n-- > images.begin;) {
      lane.grad.begin(n, first, channels, 1, geometry.output_columns);
      if (lane.kernel.wants_padded_input()) {
        lane.padded_input.begin(n, first, channels, multiplier, geometry.input_columns);
      }
      for (std::int64_t h = rows.begin; h < rows.end && (want_input || want_weight); h += lane.kernel.rows_at_once()) {
        run_rows(slice, block, n, h, std::min(lane.kernel.rows_at_once(), rows.end - h), lane);
      }
      if (T* to = sums.bias_of(lane_index, block)) {
        add_bias(n, part_of(geometry.output_rows, slices.chunks, slice % slices.chunks), block, lane, to);
      }
    }
    if (want_weight) {
      add_in_place(sums.weight_of(lane_index, block), lane.task_grad_weight, taps_size);
    }
  }

  void run_rows(std::int64_t slice, std::int64_t block, std::int64_t n, std::int64_t h, std::int64_t count,
                Lane& lane) {
    const std::int64_t first = blocks.first(block), pitch = blocks.template padded<T>(block);
    const std::int64_t row_size = geometry.input_columns * pitch;
    TilePart part{.image = n,
                  .positions = geometry.input_columns,
                  .channel = first,
                  .channels = blocks.size(block),
                  .multiplier = multiplier};
    const T* input[kMostGradientRows];
    T* grad_input[kMostGradientRows];
    for (std::int64_t r = 0; r < count; ++r) {
      part.row = h + r;
      if (want_weight) input[r] = input_row(part, block, lane, lane.input + r * row_size);
      if (want_input) {
        grad_input[r] =
            store_direct ? element<T>(arguments.grad_x, n, first, h + r, 0) : lane.grad_input + r * row_size;
      }
    }
    const std::int64_t grad_input_pitch = store_direct ? arguments.grad_x.strides[3] : pitch;
    // How far it is to the next rows, or to the image before, which comes next.
    const auto ahead = [&](const auto& tensor) -> std::int64_t {
      if (h + count < slices.rows_of(slice).end) return count * tensor.strides[2];
      return n > 0 ? (slices.rows_of(slice).begin - h) * tensor.strides[2] - tensor.strides[0] : 0;
    };
    const InputRows<T> rows{h,
                            count,
                            want_weight ? input : nullptr,
                            input_direct ? arguments.x.strides[3] : pitch,
                            want_input ? grad_input : nullptr,
                            grad_input_pitch,
                            input_direct ? ahead(arguments.x) : 0,
                            store_direct && !streams ? ahead(arguments.grad_x) : 0,
                            streams};
    const auto grad_row = [&](std::int64_t row) {
      return lane.grad.row(row, geometry.output_rows,
                           [&](const TilePart& grad_part, T* to) { lane.gradients.load(grad_part, block, to); });
    };
    lane.kernel.run(rows, grad_row, parameters.weights(block), lane.task_grad_weight, pitch);
    for (std::int64_t r = 0; r < count && want_input; ++r) {
      part.row = h + r;
      finish_row(grad_input[r], grad_input_pitch, part, slice, block, lane);
    }
  }

  /// A row of inputs as the convolution saw it.
  const T* input_row(const TilePart& part, std::int64_t block, Lane& lane, T* scratch) {
    if (input_direct) return element<T>(arguments.x, part.image, part.channel, part.row, 0);
    const auto load = [&](const TilePart& wanted, T* to) {
      load_tile<T>(arguments.x, wanted, parameters.prologue(block), to);
    };
    if (lane.kernel.wants_padded_input()) return lane.padded_input.row(part.row, arguments.x.sizes[2], load);
    load(part, scratch);
    return scratch;
  }

  void finish_row(T* row, std::int64_t row_pitch, const TilePart& part, std::int64_t slice, std::int64_t block,
                  Lane& lane) {
    if (arguments.prologue) {
      using Major = PositionMajor<T>;
      const bool in_place = multiplier == 1 && part.channels % kLanes<T> == 0 && Major::is_readable(arguments.x);
      const auto raw = read_patch<Major, T>(arguments.x, part, in_place, lane.raw_input);
      apply_activation_backward<Major, T>(Patch<T>{row, row_pitch}, raw, parameters.prologue(block),
                                          sums.vectors(slice, block), {part.positions, part.channels});
    }
    TilePart stored_part = part;
    stored_part.multiplier = 1;
    if (multiplier > 1) {
      stored_part.channel = part.channel / multiplier;
      stored_part.channels = part.channels / multiplier;
      row = add_repeats(row, part, lane.stored);
      row_pitch = round_up(stored_part.channels, kLanes<T>);
    }
    if (arguments.grad_add) {
      T* addend = lane.stored + geometry.input_columns * blocks.pitch;
      load_tile<T>(arguments.grad_add, stored_part, {}, addend);
      const std::int64_t stored_pitch = round_up(stored_part.channels, kLanes<T>);
      for (std::int64_t w = 0; w < part.positions; ++w)
        add_in_place(row + w * row_pitch, addend + w * stored_pitch, stored_pitch);
    }
    if (!store_direct) store_tile<T>(row, arguments.grad_x, stored_part);
  }

  /// A row [positions][pitch of C] from one that counts repeats.
  T* add_repeats(const T* row, const TilePart& part, T* to) const {
    const std::int64_t pitch = round_up(part.channels, kLanes<T>);
    const std::int64_t channels = part.channels / multiplier, to_pitch = round_up(channels, kLanes<T>);
    for (std::int64_t w = 0; w < part.positions; ++w) {
      std::fill_n(to + w * to_pitch, to_pitch, T(0));
      for (std::int64_t c = 0; c < part.channels; ++c) to[w * to_pitch + c / multiplier] += row[w * pitch + c];
    }
    return to;
  }

  void add_bias(std::int64_t n, Range rows, std::int64_t block, Lane& lane, T* to) {
    T* row = lane.bias_row;
    TilePart part{.image = n,
                  .positions = geometry.output_columns,
                  .channel = blocks.first(block),
                  .channels = blocks.size(block)};
    const std::int64_t pitch = round_up(part.channels, kLanes<T>);
    for (part.row = rows.begin; part.row < rows.end; ++part.row) {
      lane.gradients.load(part, block, row);
      for (std::int64_t c = 0; c < pitch; c += kLanes<T>) {
        auto sum = hn::Zero(Tag<T>());
        for (std::int64_t w = 0; w < part.positions; ++w) sum = hn::Add(sum, load_as<T>(row + w * pitch + c));
        store_as<T>(hn::Add(load_as<T>(to + c), sum), to + c);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
