/// Planes: one channel of one image in scratch memory, for kernels whose vectors run along rows. Each row has zeros
/// around it, as many as the windows reach, so that no kernel knows of borders; storage type, BatchNorm and activation
/// are dealt with on the way in.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_INL_H_
#undef FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_INL_H_
#else
#define FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/fusion-inl.h"
#include "fusedsc/common/cpu/prefetcher.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/forward/depthwise/cpu/plane_rows-inl.h"
#include "fusedsc/forward/depthwise/cpu/plane_tasks.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/config.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

using tuning::Config;
using tuning::Configs;
using tuning::Knob;

/// Some rows of neighbouring channels of an image.
struct PlanePart {
  std::int64_t image = 0;
  Range channels, rows;
};

/// The parts that a task's planes are worked off in: chunks of rows of as many planes as are loaded together, channel
/// by channel, image by image.
struct PlaneParts {
  Range images, channels;
  std::int64_t rows, chunk_rows, chunk_planes;

  bool ends_image(const PlanePart& part) const { return part.rows.end == rows && part.channels.end == channels.end; }

  /// Calls run(part, prefetcher) for one part after the other; where `fetches`, with what queue(part, next, prefetcher)
  /// has queued of the next one.
  template <class Queue, class Run>
  void for_each(bool fetches, const Queue& queue, const Run& run) const {
    for (PlanePart part = at(images.begin, channels.begin, 0), next; has(part); part = next) {
      next = after(part);
      if (fetches && has(next)) {
        Prefetcher prefetcher;
        queue(part, next, prefetcher);
        run(part, prefetcher);
      } else {
        NoPrefetcher none;
        run(part, none);
      }
    }
  }

 private:
  bool has(const PlanePart& part) const { return part.image < images.end; }
  PlanePart after(const PlanePart& part) const {
    if (part.rows.end < rows) return at(part.image, part.channels.begin, part.rows.end);
    if (part.channels.end < channels.end) return at(part.image, part.channels.end, 0);
    return at(part.image + 1, channels.begin, 0);
  }
  PlanePart at(std::int64_t image, std::int64_t channel, std::int64_t row) const {
    return {image, {channel, std::min(channel + chunk_planes, channels.end)}, {row, std::min(row + chunk_rows, rows)}};
  }
};

/// Has rows of a part fetched, of those that x has; `multiplier` as in InputPlanes.
inline void prefetch_rows(Prefetcher& prefetcher, const ConstTensorView& x, const PlanePart& part, const Range& rows,
                          std::int64_t multiplier = 1) {
  const std::int64_t begin = std::clamp<std::int64_t>(rows.begin, 0, x.sizes[2]), size = size_of(x.dtype);
  const std::int64_t count = std::min(rows.end, x.sizes[2]) - begin;
  for (std::int64_t c = part.channels.begin / multiplier; c * multiplier < part.channels.end; ++c) {
    const std::int64_t at = part.image * x.strides[0] + c * x.strides[1] + begin * x.strides[2];
    const char* const from = static_cast<const char*>(x.data) + at * size;
    if (x.strides[2] == x.sizes[3]) prefetcher.add(from, count * x.sizes[3] * size);
    else prefetcher.add(from, x.sizes[3] * size, count, x.strides[2] * size);
  }
}

/// Whether each plane of x is one piece of memory that needs no conversion.
template <class T>
bool has_dense_planes(const ConstTensorView& x) {
  return x.dtype == kComputeType<T> && (x.sizes[2] == 1 || x.strides[2] == x.sizes[3]);
}

/// As elements are where there is nothing to apply to them.
inline const Prologue kNoPrologue{};

/// Where rows go in scratch memory.
template <class T>
struct PlaneTarget {
  T* data;
  std::int64_t row_pitch, plane_pitch;
};

/// The input of a convolution, through its prologue. `multiplier` > 1 repeats each channel of the tensor that often;
/// the channels of a part then count the repeats.
template <class T>
struct InputPlanes {
  const ConstTensorView& x;
  const Prologue& prologue;
  std::int64_t multiplier = 1;

  const ConstTensorView& tensor() const { return x; }

  /// A row as it is in memory; null where its values are others.
  const T* in_place(std::int64_t n, std::int64_t c, std::int64_t h) const {
    return prologue || x.dtype != kComputeType<T> ? nullptr : element<T>(x, n, c / multiplier, h, 0);
  }

  /// Fills rows of `to`, with zeros behind them up to a whole vector.
  void load(const PlanePart& part, const PlaneTarget<T>& to) const {
    with_storage<T>(x.dtype, [&]<class Storage>() {
      for (std::int64_t c = part.channels.begin; c < part.channels.end; ++c) {
        const std::int64_t channel = multiplier == 1 ? c : c / multiplier;
        const Storage* from = element<Storage>(x, part.image, channel, part.rows.begin, 0);
        T* const rows = to.data + (c - part.channels.begin) * to.plane_pitch;
        if (prologue) load_transformed(from, channel, part.rows.size(), rows, to.row_pitch);
        else copy_rows(from, x.strides[2], part.rows.size(), x.sizes[3], rows, to.row_pitch);
      }
    });
  }

 private:
  template <class Storage>
  void load_transformed(const Storage* from, std::int64_t channel, std::int64_t rows, T* to, std::int64_t pitch) const {
    with_activation(prologue.activation, [&]<Activation kActivation>() HWY_ATTR {
      const auto scale = hn::Set(Tag<T>(), channel_value<T>(prologue.scale, channel, T(1)));
      const auto shift = hn::Set(Tag<T>(), channel_value<T>(prologue.shift, channel, T(0)));
      for (std::int64_t h = 0; h < rows; ++h) {
        map_row<T>(from + h * x.strides[2], x.sizes[3], to + h * pitch, [&](Vec<T> value, std::int64_t) HWY_ATTR {
          return activate<kActivation, T>(hn::MulAdd(value, scale, shift));
        });
      }
    });
  }
};

/// The output gradient, through its prologue.
template <class T>
struct GradientPlanes {
  const ConstTensorView& grad;
  const GradientPrologue& prologue;

  const ConstTensorView& tensor() const { return grad; }

  const T* in_place(std::int64_t n, std::int64_t c, std::int64_t h) const {
    return prologue || grad.dtype != kComputeType<T> ? nullptr : element<T>(grad, n, c, h, 0);
  }

  void load(const PlanePart& part, const PlaneTarget<T>& to) const {
    if (!prologue) return InputPlanes<T>{grad, {}}.load(part, to);
    with_storage<T>(grad.dtype, [&]<class Storage>() HWY_ATTR {
      for (std::int64_t c = part.channels.begin; c < part.channels.end; ++c) {
        const Tag<T> d;
        const auto grad_scale = hn::Set(d, channel_value<T>(prologue.grad_scale, c, T(1)));
        const auto output_scale = hn::Set(d, channel_value<T>(prologue.output_scale, c, T(0)));
        const auto offset = hn::Set(d, channel_value<T>(prologue.offset, c, T(0)));
        for (std::int64_t h = part.rows.begin; h < part.rows.end; ++h) {
          const Storage* output = element<Storage>(prologue.output, part.image, c, h, 0);
          T* row = to.data + (c - part.channels.begin) * to.plane_pitch + (h - part.rows.begin) * to.row_pitch;
          const auto map = [&](Vec<T> value, std::int64_t i) HWY_ATTR {
            const std::int64_t left = grad.sizes[3] - i;
            const auto raw = left >= kLanes<T> ? load_as<T>(output + i) : load_partial<T>(output + i, left);
            return hn::MulAdd(value, grad_scale, hn::MulAdd(raw, output_scale, offset));
          };
          map_row<T>(element<Storage>(grad, part.image, c, h, 0), grad.sizes[3], row, map);
        }
      }
    });
  }
};

/// Rows of some channels, padded. With `phases` = 2, for a window that moves by two columns, even and odd padded
/// columns lie apart: what a tap reads for neighbouring outputs are neighbours again.
template <class T>
class PaddedPlanes {
 public:
  /// Up to `planes` times `rows` rows of `width` elements with `left` zeros before them and zeros behind: `reach`
  /// padded columns may be read, and whole vectors from each of them.
  PaddedPlanes(std::int64_t planes, std::int64_t rows, std::int64_t phases, std::int64_t left, std::int64_t width,
               std::int64_t reach, Arena& arena)
      : planes_(planes),
        rows_(rows),
        phases_(phases),
        left_(left),
        length_(round_up((std::max(left + width, reach) + phases - 1) / phases, kLanes<T>) + kLanes<T>),
        data_(arena.take<T>(planes * plane_pitch())),
        row_(arena.take<T>(phases == 2 ? round_up(width, kLanes<T>) : 0)) {}

  std::int64_t pitch() const { return phases_ * length_; }
  std::int64_t plane_pitch() const { return rows_ * pitch(); }
  const T* plane(std::int64_t index) const { return data_ + index * plane_pitch(); }
  /// Where a tap `row` rows and `column` padded columns on reads.
  std::int64_t offset(std::int64_t row, std::int64_t column) const {
    return row * pitch() + column % phases_ * length_ + column / phases_;
  }

  /// To be called once, before anything else.
  void clear() { std::fill_n(data_, planes_ * plane_pitch(), T(0)); }

  /// Fills one plane per channel with rows `part.rows`, zeros where the tensor has none. Where even and odd columns are
  /// parted, each row of `written` is fetched meanwhile, if it is given: it is about to be written, in an order that
  /// the hardware does not see through.
  template <class Source>
  void load(const Source& source, const PlanePart& part, const TensorView& written = {}) {
    const std::int64_t height = source.tensor().sizes[2];
    PlanePart inside = part;
    inside.rows.begin = std::clamp<std::int64_t>(part.rows.begin, 0, height);
    inside.rows.end = std::clamp<std::int64_t>(part.rows.end, inside.rows.begin, height);
    const Range filled{inside.rows.begin - part.rows.begin, inside.rows.end - part.rows.begin};
    clear_around(filled, part.rows.size());
    if (filled.size() <= 0) return;
    T* const first = data_ + filled.begin * pitch();
    if (phases_ == 1) source.load(inside, {first + left_, pitch(), plane_pitch()});
    else load_apart(source, inside, written, first);
  }

 private:
  /// Sees to it that the rows around those that are about to be filled are zeros, in all planes.
  void clear_around(const Range& filled, std::int64_t rows) {
    if (filled.begin == filled_.begin && filled.end == filled_.end && rows == used_rows_) return;
    for (std::int64_t p = 0; p < planes_; ++p) {
      T* const first = data_ + p * plane_pitch();
      std::fill(first, first + std::max<std::int64_t>(filled.begin, 0) * pitch(), T(0));
      std::fill(first + std::clamp<std::int64_t>(filled.end, 0, rows) * pitch(), first + rows * pitch(), T(0));
    }
    filled_ = filled;
    used_rows_ = rows;
  }

  template <class Source>
  void load_apart(const Source& source, const PlanePart& part, const TensorView& written, T* first) {
    PlanePart one = part;
    for (std::int64_t c = part.channels.begin; c < part.channels.end; ++c) {
      for (std::int64_t h = part.rows.begin; h < part.rows.end; ++h) {
        if (written) prefetch(element<T>(written, part.image, c, h, 0), written.sizes[3] * std::int64_t{sizeof(T)});
        const T* from = source.in_place(part.image, c, h);
        if (from == nullptr) {
          one.channels = {c, c + 1};
          one.rows = {h, h + 1};
          source.load(one, {row_, 0, 0});
          from = row_;
        }
        T* const row = first + (c - part.channels.begin) * plane_pitch() + (h - part.rows.begin) * pitch();
        T* const phase[2] = {row + left_ / 2, row + length_ + left_ / 2};
        const std::int64_t width = source.tensor().sizes[3];
        if (left_ % 2 == 0) split_row(from, width, phase[0], phase[1]);
        else split_row(from, width, phase[1], phase[0] + 1);
      }
    }
  }

  std::int64_t planes_, rows_, phases_, left_, length_;
  T* data_;
  T* row_;
  Range filled_;  ///< of the rows in use those that are not zeros
  std::int64_t used_rows_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
