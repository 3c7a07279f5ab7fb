/// How the kernels for any window (depthwise_windows.h) bring tiles and taps to shared memory.
#pragma once

#include <type_traits>

#include "fusedsc/forward/depthwise/windows/depthwise_windows.h"

namespace fusedsc::gpu {

/// Elements of kVector channels of x on their way to shared memory, through the prologue.
template <class T, int kVector_>
struct WindowInput {
  using A = Accumulator<T>;
  static constexpr int kVector = kVector_;
  struct Raw {
    Vector<T, kVector> x;
  };
  struct Cursor {
    const T* x;
  };
  struct Step {
    std::int64_t x;
  };

  ConstDeviceTensor x;
  DevicePrologue prologue;
  bool is_plain;
  const T* from = nullptr;
  int first_channel = 0;

  FUSEDSC_DEVICE WindowInput(const ConstDeviceTensor& x_, const DevicePrologue& prologue_)
      : x(x_),
        prologue(prologue_),
        is_plain(prologue_.scale == nullptr && prologue_.shift == nullptr &&
                 prologue_.activation == Activation::identity) {}

  FUSEDSC_DEVICE void set_channel(int image, int channel) {
    from = elements_of<T>(x) + x.offset(image, channel, 0, 0);
    first_channel = channel;
  }
  FUSEDSC_DEVICE Cursor cursor(std::int64_t h, std::int64_t w) const { return {from + h * x.row + w * x.column}; }
  FUSEDSC_DEVICE Step step(std::int64_t rows) const { return {rows * x.row}; }
  FUSEDSC_DEVICE static void advance(Cursor& cursor, const Step& step) { cursor.x += step.x; }
  FUSEDSC_DEVICE Raw load(const Cursor& cursor) const { return {gpu::load<kVector>(cursor.x)}; }
  FUSEDSC_DEVICE static void widen(const Raw& raw, A* to) { raw.x.widen(to); }

  template <int kCount>
  FUSEDSC_DEVICE void apply_prologue(const Raw (&)[kCount], A (&values)[kCount * kVector]) const {
    A scale[kVector], shift[kVector];  // loaded anew each time: registers are scarcer
    load_channels(prologue.scale, first_channel, A(1), scale, A());
    load_channels(prologue.shift, first_channel, A(0), shift, A());
#pragma unroll
    for (int i = 0; i < kCount * kVector; ++i) values[i] = values[i] * scale[i % kVector] + shift[i % kVector];
    activate(prologue.activation, values);
  }
};

/// Likewise those of grad_y, with BatchNorm's gradient.
template <class T, int kVector_>
struct WindowGradient {
  using A = Accumulator<T>;
  static constexpr int kVector = kVector_;
  struct Raw {
    Vector<T, kVector> grad, output;
  };
  struct Cursor {
    const T *grad, *output;
  };
  struct Step {
    std::int64_t grad, output;
  };

  ConstDeviceTensor grad_y;
  DeviceGradientPrologue prologue;
  bool is_plain;
  const T *from = nullptr, *output = nullptr;
  int first_channel = 0;

  FUSEDSC_DEVICE WindowGradient(const ConstDeviceTensor& grad_y_, const DeviceGradientPrologue& prologue_)
      : grad_y(grad_y_), prologue(prologue_), is_plain(prologue_.output.data == nullptr) {}

  FUSEDSC_DEVICE void set_channel(int image, int channel) {
    from = elements_of<T>(grad_y) + grad_y.offset(image, channel, 0, 0);
    output = elements_of<T>(prologue.output) + prologue.output.offset(image, channel, 0, 0);
    first_channel = channel;
  }
  FUSEDSC_DEVICE Cursor cursor(std::int64_t h, std::int64_t w) const {
    return {from + h * grad_y.row + w * grad_y.column, output + h * prologue.output.row + w * prologue.output.column};
  }
  FUSEDSC_DEVICE Step step(std::int64_t rows) const { return {rows * grad_y.row, rows * prologue.output.row}; }
  FUSEDSC_DEVICE static void advance(Cursor& cursor, const Step& step) {
    cursor.grad += step.grad;
    cursor.output += step.output;
  }
  FUSEDSC_DEVICE Raw load(const Cursor& cursor) const {
    Raw raw{gpu::load<kVector>(cursor.grad), {}};
    if (!is_plain) raw.output = gpu::load<kVector>(cursor.output);
    return raw;
  }
  FUSEDSC_DEVICE static void widen(const Raw& raw, A* to) { raw.grad.widen(to); }

  template <int kCount>
  FUSEDSC_DEVICE void apply_prologue(const Raw (&raw)[kCount], A (&values)[kCount * kVector]) const {
    A grad_scale[kVector], output_scale[kVector], offset[kVector];  // likewise
    load_channels(prologue.grad_scale, first_channel, A(1), grad_scale, A());
    load_channels(prologue.output_scale, first_channel, A(0), output_scale, A());
    load_channels(prologue.offset, first_channel, A(0), offset, A());
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      A out[kVector];
      raw[i].output.widen(out);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        A& value = values[i * kVector + v];
        value = value * grad_scale[v] + (out[v] * output_scale[v] + offset[v]);
      }
    }
  }
};

/// Positions of an image along one axis: the first, and from each to the next; outside of [0, size) there are zeros.
struct WindowPositions {
  int first, step, size;
};

/// A column of a tile, by some threads: row first + i*step of the image goes to row i of shared memory, to[i*pitch],
/// for i < count, and to each channel's plane. kAtOnce: loads that a thread has under way.
template <int kAtOnce, class Source, class A>
FUSEDSC_DEVICE void bring_window_column(const Source& source, const WindowPositions& rows, int count, int column,
                                        bool has_column, int lane, int lanes, A* to, int pitch, int plane) {
  constexpr int kVector = Source::kVector;
  const int end = rows.first + count * rows.step, step = lanes * rows.step;
  const auto inside = static_cast<unsigned>(has_column && end > 0 ? least(end, rows.size) : 0);
  const typename Source::Step cursor_step = source.step(step);
  int h = rows.first + lane * rows.step;
  typename Source::Cursor cursor = source.cursor(h, column);
  to += lane * pitch;
#pragma unroll 1
  while (h < end) {
    typename Source::Raw raw[kAtOnce];
    A values[kAtOnce * kVector];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      raw[i] = {};
      if (static_cast<unsigned>(h + i * step) < inside) raw[i] = source.load(cursor);
      Source::advance(cursor, cursor_step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) Source::widen(raw[i], values + i * kVector);
    if (!source.is_plain) {
      source.apply_prologue(raw, values);
#pragma unroll
      for (int i = 0; i < kAtOnce * kVector; ++i) {
        values[i] = static_cast<unsigned>(h + i / kVector * step) < inside ? values[i] : A(0);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        if (h < end) to[v * plane] = values[i * kVector + v];
      }
      h += step;
      to += lanes * pitch;
    }
  }
}

/// How the threads of a block share out a tile that is brought, of places that lie side by side in a row.
struct WindowLanes {
  int channel, channels, column, columns, row, rows;
  bool idle;

  FUSEDSC_DEVICE WindowLanes(const ItemWork& work, const ItemShare& share, const WindowTile& tile)
      : channel(share.channel_lane),
        channels(work.channel_lanes),
        columns(tile.column_lanes),
        rows(tile.row_lanes),
        idle(share.channel_lane >= work.channel_lanes || share.item_lane >= work.item_lanes) {
    std::uint32_t rest = static_cast<std::uint32_t>(share.item_lane);
    if (tile.vector > 1) {
      std::uint32_t group = static_cast<std::uint32_t>(thread_index());
      rest = tile.by_channel_groups.divide(group);
      channel = static_cast<int>(group) * tile.vector;
      idle = false;
    }
    row = static_cast<int>(tile.by_column_lanes.divide(rest));
    column = static_cast<int>(rest);
    idle = idle || row >= rows;
  }
};

/// A tile of some channels of an image. rows_of(part) says where the rows of a part come from, column_of(class, i)
/// where column i of a class does, of an image `width` wide.
template <int kAtOnce, class Source, class RowsOf, class ColumnOf>
FUSEDSC_DEVICE void bring_window_tile(Source source, const WindowLanes& lanes, const WindowPlaces& places, int image,
                                      int first_channel, int channels, int row_parts, const RowsOf& rows_of, int width,
                                      const ColumnOf& column_of, typename Source::A* to) {
  if (lanes.idle) return;
  for (int c = lanes.channel; c < places.channels && first_channel + c < channels; c += lanes.channels) {
    source.set_channel(image, first_channel + c);
    for (int place = lanes.column; place < places.used; place += lanes.columns) {
      std::uint32_t rest = static_cast<std::uint32_t>(place);
      const int column_class = static_cast<int>(places.by_segment.divide(rest));
      const int column = column_of(column_class, static_cast<int>(rest));
      for (int part = 0; part < row_parts; ++part) {
        bring_window_column<kAtOnce>(
            source, rows_of(part), places.rows, column, column >= 0 && column < width, lanes.row, lanes.rows,
            to + c * places.plane + part * places.rows * places.pitch + place, places.pitch, places.plane);
      }
    }
  }
}

/// bring(kVector as a constant), with vectors of channels where the tile is brought so.
template <class T, class Bring>
FUSEDSC_DEVICE void with_window_vector(const WindowTile& tile, const Bring& bring) {
  if constexpr (sizeof(T) < 8) {
    if (tile.vector > 1) return bring(std::integral_constant<int, kWindowVector>());
  }
  bring(std::integral_constant<int, 1>());
}

/// The inputs that the windows of a tile of outputs see.
template <class T, int kAtOnce>
FUSEDSC_DEVICE void bring_window_inputs(const ConstDeviceTensor& x, const DevicePrologue& prologue,
                                        const WindowTile& tile, const WindowLanes& lanes, const WindowAxis& rows,
                                        const WindowAxis& columns, const WindowPlaces& places,
                                        const WindowTilePosition& position, int first_channel, int channels,
                                        Accumulator<T>* to) {
  const auto rows_of = [&](int part) {
    return WindowPositions{rows.first_input(position.phase, part) + position.row * rows.period, rows.period,
                           rows.input};
  };
  const auto column_of = [&](int column_class, int i) {
    std::uint32_t rest = static_cast<std::uint32_t>(column_class);
    const int phase = static_cast<int>(columns.by_parts.divide(rest)), part = static_cast<int>(rest);
    return columns.first_input(phase, part) + (position.column + i) * columns.period;
  };
  with_window_vector<T>(tile, [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    bring_window_tile<(kVector > 1 ? 2 : kAtOnce)>(WindowInput<T, kVector>(x, prologue), lanes, places, position.image,
                                                   first_channel, channels, rows.parts, rows_of, columns.input,
                                                   column_of, to);
  });
}

/// grad_y of rows rows_of(0) and columns column_of(phase, i).
template <class T, int kAtOnce, class RowsOf, class ColumnOf>
FUSEDSC_DEVICE void bring_window_gradients(const ConstDeviceTensor& grad_y, const DeviceGradientPrologue& prologue,
                                           const WindowTile& tile, const WindowLanes& lanes, const WindowPlaces& places,
                                           int image, int first_channel, int channels, const RowsOf& rows_of, int width,
                                           const ColumnOf& column_of, Accumulator<T>* to) {
  with_window_vector<T>(tile, [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    bring_window_tile<(kVector > 1 ? 2 : kAtOnce)>(WindowGradient<T, kVector>(grad_y, prologue), lanes, places, image,
                                                   first_channel, channels, 1, rows_of, width, column_of, to);
  });
}

/// `rotated`: each part's taps of columns are in the opposite order, its first at columns.reach - 1.
template <class T>
FUSEDSC_DEVICE void bring_window_weights(const ConstDeviceTensor& weight, const WindowAxis& rows,
                                         const WindowAxis& columns, const WindowWeights& places, int first_channel,
                                         int channels, bool rotated, Accumulator<T>* to) {
  const int taps = rows.kernel * columns.kernel;
  for (int i = thread_index(); i < places.channels * taps; i += kWindowThreads) {
    const int c = i / taps, tap = i - c * taps, kh = tap / columns.kernel, kw = tap - kh * columns.kernel;
    if (first_channel + c >= channels) continue;
    const int row_tap = kh / rows.parts, column_tap = kw / columns.parts;
    const int part = kw - column_tap * columns.parts;
    to[c * places.plane + places.place(rows, columns, kh - row_tap * rows.parts, row_tap) + part * places.run +
       (rotated ? columns.reach - 1 - column_tap : column_tap)] =
        to_accumulator(elements_of<T>(weight)[weight.offset(first_channel + c, 0, kh, kw)]);
  }
}

}  // namespace fusedsc::gpu
