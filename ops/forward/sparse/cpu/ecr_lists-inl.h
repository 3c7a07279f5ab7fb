/// The values other than zero under each window of a part of a map: seed 002's ECR (section 5.2, Algorithm 1).

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_SPARSE_CPU_ECR_LISTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_SPARSE_CPU_ECR_LISTS_INL_H_
#undef FUSEDSC_FORWARD_SPARSE_CPU_ECR_LISTS_INL_H_
#else
#define FUSEDSC_FORWARD_SPARSE_CPU_ECR_LISTS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>
#include <type_traits>
#include <utility>

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/cpu/transpose-inl.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/sparse.h"
#include "fusedsc/forward/sparse/cpu/compressed_map-inl.h"
#include "fusedsc/runtime/arena.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Rows of an image's result of the convolution, in all columns that are wanted.
struct SparsePart {
  std::int64_t image = 0;
  Range rows;
};

/// F_data, and in place of K_data, which is one output's, where the value's row of the packed weight begins: it serves
/// all outputs (PECR's Index, section 6.2). Of each block of channels all windows one after the other, as they are
/// multiplied. An empty list is one of no values, where the paper has -1.
template <class T>
struct EcrLists {
  using Offset = hwy::MakeUnsigned<T>;

  T* values;
  Offset* offsets;
  std::int64_t* begins;  ///< Ptr, summed up: of each block's windows, and the last one's end

  static constexpr std::int64_t kSlack = 2 * kLanes<T>;  ///< whole vectors are stored behind the last value

  /// For so many windows of `channels` x `taps` values, channels in `blocks`.
  EcrLists(Arena& arena, std::int64_t windows, std::int64_t rows, std::int64_t blocks)
      : values(arena.take<T>(windows * rows + kSlack)),
        offsets(arena.take<Offset>(windows * rows + kSlack)),
        begins(arena.take<std::int64_t>(windows * blocks + 1)) {}
};

/// Stores the lanes of `value` and `offset` that are given, side by side, and whatever else fits a vector behind them.
/// How many were given.
template <class T>
std::int64_t store_given(Vec<T> value, hn::VFromD<hn::RebindToUnsigned<Tag<T>>> offset, hn::MFromD<Tag<T>> given,
                         T* values, hwy::MakeUnsigned<T>* offsets) {
  const Compaction<T> compaction(given);
  hn::StoreU(compaction.of(value), Tag<T>(), values);
  hn::StoreU(compaction.of(offset), hn::RebindToUnsigned<Tag<T>>(), offsets);
  return compaction.count();
}

/// How the windows of a problem are compressed. Each value is looked at once, however many windows it is under: first
/// the positions of a part of x are compressed, or read where x is a compressed map, and then each window's lists are
/// put together of those of its positions.
template <class T>
class EcrCompression {
 public:
  /// `columns`: of the convolution's result, those that are wanted. `rows`: the most that a part has.
  EcrCompression(const SparseArguments& arguments, std::int64_t columns, std::int64_t rows)
      : arguments_(arguments),
        window_(arguments.window),
        x_(arguments.x),
        columns_(columns),
        taps_(window_.kernel[0] * window_.kernel[1]),
        channels_(x_.sizes[1] / arguments.groups),
        block_(std::max<std::int64_t>(kLeastChannels, kBlockRows / taps_ / kLeastChannels * kLeastChannels)),
        input_rows_(
            std::min(x_.sizes[2], (rows - 1) * window_.stride[0] + window_.dilation[0] * (window_.kernel[0] - 1) + 1)),
        is_compressed_(static_cast<bool>(arguments.x_counts)),
        in_place_(is_compressed_ || (x_.strides[1] == 1 && is_own_type())) {}

  /// Blocks of channels of all groups.
  std::int64_t blocks() const { return arguments_.groups * blocks_of_group(); }
  std::int64_t blocks_of_group() const { return divide_up(channels_, block_); }
  /// The values under a window, all groups'; a packed weight's rows, of all groups.
  std::int64_t rows() const { return x_.sizes[1] * taps_; }
  std::int64_t rows_of_group() const { return channels_ * taps_; }
  std::int64_t columns() const { return columns_; }

  /// Where a lane has its rows of x, the channels of a position side by side, and one row as it comes; and a block's
  /// lists of positions, where they are not the windows'.
  struct Scratch {
    T *rows = nullptr, *row = nullptr;
    T* values = nullptr;
    typename EcrLists<T>::Offset* offsets = nullptr;
    std::int64_t* begins = nullptr;
  };
  Scratch take_scratch(Arena& arena) const {
    Scratch scratch;
    const std::int64_t positions = input_rows_ * x_.sizes[3];
    if (!in_place_) {
      scratch.rows = arena.take<T>(positions * x_.sizes[1]);
      scratch.row = arena.take<T>(x_.sizes[3] * x_.sizes[1]);
    }
    if (taps_ > 1) {
      const std::int64_t most = positions * std::min(block_, channels_) + EcrLists<T>::kSlack;
      scratch.values = arena.take<T>(most);
      scratch.offsets = arena.take<typename EcrLists<T>::Offset>(most);
      scratch.begins = arena.take<std::int64_t>(positions + 1);
    }
    return scratch;
  }

  void compress(const SparsePart& part, const Scratch& scratch, const EcrLists<T>& lists) const {
    const Rows rows = rows_of(part, scratch);
    std::int64_t *begin = lists.begins, count = 0;
    for (std::int64_t g = 0; g < arguments_.groups; ++g) {
      for (std::int64_t first = 0; first < channels_; first += block_) {
        const Range channels{first, std::min(first + block_, channels_)};
        if (taps_ > 1) compress_positions(rows, g, channels, scratch);
        for (std::int64_t row = part.rows.begin; row < part.rows.end; ++row) {
          for (std::int64_t column = 0; column < columns_; ++column) {
            *begin++ = count;
            count = taps_ > 1 ? join_positions(rows, row, column, scratch, lists, count)
                              : compress_window(rows, row, column, g, channels, lists, count);
          }
        }
      }
    }
    *begin = count;
  }

 private:
  /// A block's rows of the weight, 64 outputs each, fit a first-level cache.
  static constexpr std::int64_t kBlockRows = 128;
  static constexpr std::int64_t kLeastChannels = 16;

  /// Of x, those that a part's windows reach: channels side by side, from `data` on.
  struct Rows {
    const T* data = nullptr;  ///< none of a compressed map
    Range needed;
    std::int64_t row = 0, column = 0;  ///< strides
    std::int64_t image = 0;
  };

  bool is_own_type() const { return x_.dtype == (std::is_same_v<T, double> ? DataType::float64 : DataType::float32); }

  /// Of a kernel of one tap, a window's values are a position's.
  std::int64_t compress_window(const Rows& rows, std::int64_t row, std::int64_t column, std::int64_t group,
                               const Range& channels, const EcrLists<T>& lists, std::int64_t count) const {
    const std::int64_t h = row * window_.stride[0] - window_.padding.top;
    const std::int64_t w = column * window_.stride[1] - window_.padding.left;
    if (h < 0 || h >= x_.sizes[2] || w < 0 || w >= x_.sizes[3]) return count;
    return count + compress_position(rows, h, w, group, channels, lists.values + count, lists.offsets + count);
  }

  std::int64_t compress_position(const Rows& rows, std::int64_t h, std::int64_t w, std::int64_t group,
                                 const Range& channels, T* values, typename EcrLists<T>::Offset* offsets) const {
    if (!is_compressed_) return compress_run(at(rows, h, w, group, channels), channels, values, offsets);
    const std::int64_t place = rows.image * x_.strides[0] + h * x_.strides[2] + w * x_.strides[3];
    const std::int64_t own = group * channels_;
    return read_compressed<T>(arguments_, place, {own, own + channels.begin, own + channels.end},
                              taps_ * kPackedOutputs, values, offsets);
  }

  const T* at(const Rows& rows, std::int64_t h, std::int64_t w, std::int64_t group, const Range& channels) const {
    return rows.data + (h - rows.needed.begin) * rows.row + w * rows.column + group * channels_ + channels.begin;
  }

  void compress_positions(const Rows& rows, std::int64_t group, const Range& channels, const Scratch& scratch) const {
    std::int64_t *begin = scratch.begins, count = 0;
    for (std::int64_t h = rows.needed.begin; h < rows.needed.end; ++h) {
      for (std::int64_t w = 0; w < x_.sizes[3]; ++w) {
        *begin++ = count;
        count += compress_position(rows, h, w, group, channels, scratch.values + count, scratch.offsets + count);
      }
    }
    *begin = count;
  }

  std::int64_t join_positions(const Rows& rows, std::int64_t row, std::int64_t column, const Scratch& scratch,
                              const EcrLists<T>& lists, std::int64_t count) const {
    const Tag<T> d;
    const hn::RebindToUnsigned<Tag<T>> d_offset;
    for (std::int64_t kh = 0; kh < window_.kernel[0]; ++kh) {
      const std::int64_t h = row * window_.stride[0] - window_.padding.top + kh * window_.dilation[0];
      if (h < 0 || h >= x_.sizes[2]) continue;
      const std::int64_t* begins = scratch.begins + (h - rows.needed.begin) * x_.sizes[3];
      for (std::int64_t kw = 0; kw < window_.kernel[1]; ++kw) {
        const std::int64_t w = column * window_.stride[1] - window_.padding.left + kw * window_.dilation[1];
        if (w < 0 || w >= x_.sizes[3]) continue;
        const std::int64_t tap = (kh * window_.kernel[1] + kw) * kPackedOutputs;
        const auto shift = hn::Set(d_offset, static_cast<typename EcrLists<T>::Offset>(tap));
        const std::int64_t begin = begins[w], size = begins[w + 1] - begin;
        std::int64_t i = 0;
        do {  // once at least: mostly that is enough, and how many there are is hard to foresee
          hn::StoreU(hn::LoadU(d, scratch.values + begin + i), d, lists.values + count + i);
          hn::StoreU(hn::Add(hn::LoadU(d_offset, scratch.offsets + begin + i), shift), d_offset,
                     lists.offsets + count + i);
          i += kLanes<T>;
        } while (i < size);
        count += size;
      }
    }
    return count;
  }

  /// All but zeros, of either sign, with the offsets of their rows of the weight at the first tap.
  std::int64_t compress_run(const T* from, const Range& channels, T* values,
                            typename EcrLists<T>::Offset* offsets) const {
    using Offset = typename EcrLists<T>::Offset;
    const Tag<T> d;
    const hn::RebindToUnsigned<Tag<T>> d_offset;
    const std::int64_t step = taps_ * kPackedOutputs, size = channels.size();
    auto places = hn::Add(hn::Mul(hn::Iota(d_offset, Offset{0}), hn::Set(d_offset, static_cast<Offset>(step))),
                          hn::Set(d_offset, static_cast<Offset>(channels.begin * step)));
    const auto next = hn::Set(d_offset, static_cast<Offset>(kLanes<T> * step));
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < size; i += kLanes<T>) {
      const auto value = size - i >= kLanes<T> ? load_as<T>(from + i) : load_partial<T>(from + i, size - i);
      const auto given = hn::Not(hn::Eq(value, hn::Zero(d)));  // Ne is false of NaN
      count += store_given<T>(value, places, given, values + count, offsets + count);
      places = hn::Add(places, next);
    }
    return count;
  }

  Rows rows_of(const SparsePart& part, const Scratch& scratch) const {
    const std::int64_t width = x_.sizes[3], channels = x_.sizes[1];
    const std::int64_t top = part.rows.begin * window_.stride[0] - window_.padding.top;
    const std::int64_t reach =
        (part.rows.size() - 1) * window_.stride[0] + window_.dilation[0] * (window_.kernel[0] - 1) + 1;
    const Range needed{std::clamp<std::int64_t>(top, 0, x_.sizes[2]),
                       std::clamp<std::int64_t>(top + reach, 0, x_.sizes[2])};
    if (is_compressed_) return {nullptr, needed, 0, 0, part.image};
    if (in_place_) {
      const T* data = static_cast<const T*>(x_.data) + part.image * x_.strides[0] + needed.begin * x_.strides[2];
      return {data, needed, x_.strides[2], x_.strides[3]};
    }
    with_storage<T>(x_.dtype, [&]<class Storage>() {
      const Storage* from =
          static_cast<const Storage*>(x_.data) + part.image * x_.strides[0] + needed.begin * x_.strides[2];
      if constexpr (std::is_same_v<Storage, T>) {
        if (x_.strides[3] == 1 && x_.strides[2] == width) return read_planes(from, needed.size() * width, scratch.rows);
      }
      for (std::int64_t i = 0; i < needed.size(); ++i) {
        read_row(from + i * x_.strides[2], scratch.rows + i * width * channels, scratch.row);
      }
    });
    return {scratch.rows, needed, width * channels, channels};
  }

  /// Positions side by side, a line of cache of each channel at a time.
  void read_planes(const T* from, std::int64_t positions, T* to) const {
    constexpr std::int64_t kPositions = 16;
    const std::int64_t channels = x_.sizes[1];
    for (std::int64_t i = 0; i < positions; i += kPositions) {
      transpose(from + i, x_.strides[1], to + i * channels, channels, channels, std::min(kPositions, positions - i));
    }
  }

  /// to: [width][channels]; line: [channels][width]
  template <class Storage>
  void read_row(const Storage* from, T* to, T* line) const {
    const std::int64_t width = x_.sizes[3], channels = x_.sizes[1];
    if (x_.strides[1] == 1) {
      for (std::int64_t w = 0; w < width; ++w) read_line(from + w * x_.strides[3], channels, 1, to + w * channels);
      return;
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      read_line(from + c * x_.strides[1], width, x_.strides[3], line + c * width);
    }
    transpose(line, width, to, channels, channels, width);
  }

  template <class Storage>
  static void read_line(const Storage* from, std::int64_t size, std::int64_t stride, T* to) {
    if (stride != 1) {
      for (std::int64_t i = 0; i < size; ++i) store_partial<T>(load_partial<T>(from + i * stride, 1), to + i, 1);
      return;
    }
    std::int64_t i = 0;
    for (; i + kLanes<T> <= size; i += kLanes<T>) store_as<T>(load_as<T>(from + i), to + i);
    if (i < size) store_partial<T>(load_partial<T>(from + i, size - i), to + i, size - i);
  }

  const SparseArguments& arguments_;
  const Window& window_;
  const ConstTensorView& x_;
  std::int64_t columns_, taps_, channels_, block_, input_rows_;
  bool is_compressed_;
  bool in_place_;  ///< x is read where it is
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
