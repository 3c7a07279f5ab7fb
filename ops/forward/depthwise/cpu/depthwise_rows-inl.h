/// Produces rows of a depthwise convolution's raw output, one image after the other, for whoever wants them: the plain
/// operator, which stores them, and the fused block, which feeds them to the pointwise product while they are in cache.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_ROWS_INL_H_
#undef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_ROWS_INL_H_
#else
#define FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_ROWS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/forward/depthwise/cpu/depthwise_plan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// One lane's producer. begin() names an image and a channel block; compute() then gives rows in any order, cheapest in
/// rising order.
template <class T>
class DepthwiseRows {
 public:
  DepthwiseRows(const DepthwiseArguments& arguments, const DepthwisePlan<T>& plan,
                const DepthwiseParameters<T>& parameters, Arena& arena)
      : arguments_(arguments),
        plan_(plan),
        parameters_(parameters),
        ring_(plan.direct ? 0 : plan.ring_rows, plan.direct ? 0 : plan.ring_columns, arguments.window.padding.left,
              plan.blocks.pitch, arena) {
    if (plan.direct) {
      zeros_ = arena.take<T>(plan.blocks.pitch);
    } else if (!plan.three_by_three) {
      taps_ = arena.take<Tap<T>>(parameters.tap_count);
      unstored_ = arena.take<T>(plan.output_columns * plan.blocks.pitch);
    }
  }

  void begin(std::int64_t image, std::int64_t block) {
    image_ = image;
    block_ = block;
    channels_ = plan_.blocks.template padded<T>(block);
    const std::int64_t first = plan_.blocks.first(block);
    if (plan_.direct) {
      x_ = element<T>(arguments_.x, image, first, 0, 0);
      std::fill(zeros_, zeros_ + plan_.blocks.pitch, T(0));
    } else {
      ring_.begin(image, first, plan_.blocks.size(block), plan_.multiplier, arguments_.x.sizes[3]);
    }
  }

  /// Computes output rows [row, row + count), count <= plan.step_rows, adds them to `moments` where given, and stores
  /// them where `output` says.
  void compute(std::int64_t row, std::int64_t count, const BlockOutput<T>& output, Moments<T>& moments) {
    if (!plan_.three_by_three) return compute_taps(row, output, moments);
    const bool stride_one = arguments_.window.stride[0] == 1;
    if (count == 2)
      return stride_one ? compute_blocks<1, 2>(row, output, moments) : compute_blocks<2, 2>(row, output, moments);
    stride_one ? compute_blocks<1, 1>(row, output, moments) : compute_blocks<2, 1>(row, output, moments);
  }

 private:
  const T* ring_row(std::int64_t row) {
    return ring_.row(row, arguments_.x.sizes[2], [&](const TilePart& part, T* to) {
      load_tile<T>(arguments_.x, part, parameters_.prologue(block_), to);
    });
  }

  template <int kStride, int kRows>
  void compute_blocks(std::int64_t row, const BlockOutput<T>& output, Moments<T>& moments) {
    constexpr int kInputRows = (kRows - 1) * kStride + 3;
    const std::int64_t top = row * kStride - arguments_.window.padding.top;
    const T* rows[kInputRows];
    for (int i = 0; i < kInputRows; ++i) rows[i] = plan_.direct ? direct_row(top + i) : ring_row(top + i);
    const DepthwiseWeights<T> weights = parameters_.weights(block_);
    BlockInput<T> input;
    std::int64_t columns = 0;
    for (std::int64_t w = 0; w < plan_.output_columns; w += columns) {
      columns = next_block_columns(plan_.step_columns, plan_.output_columns - w);
      const std::int64_t input_columns = (columns - 1) * kStride + 3;
      input.pitch = is_whole(rows, kInputRows, w * kStride, input_columns) && kRows == kDepthwiseRows &&
                            columns >= kDepthwiseColumns[1]
                        ? arguments_.x.strides[3]
                        : 0;
      for (int i = 0; i < kInputRows; ++i) {
        if (input.pitch != 0) input.at[i] = rows[i] + (w * kStride - arguments_.window.padding.left) * input.pitch;
        else point_to_row(rows[i], w * kStride, input_columns, input.at + i * input_columns);
      }
      for (int i = 0; i < kRows * kStride; ++i) input.ahead[i] = ahead(top + kInputRows + i, w * kStride);
      T* output_rows[kRows];
      const BlockOutput<T> block_output{output.rows == nullptr ? nullptr : output_rows, output.pitch, output.ahead,
                                        output.streams};
      for (int r = 0; r < kRows && output.rows != nullptr; ++r) output_rows[r] = output.rows[r] + w * output.pitch;
      depthwise_3x3_block<T, kStride, kRows>(columns, input, weights, channels_, block_output, moments);
    }
  }

  /// Row `row` of x itself, or null outside.
  const T* direct_row(std::int64_t row) const {
    return row >= 0 && row < arguments_.x.sizes[2] ? x_ + row * arguments_.x.strides[2] : nullptr;
  }

  /// Where x has column `column` of the padded row `row`, which may lie in the next image; null if it is not to be
  /// fetched.
  const T* ahead(std::int64_t row, std::int64_t column) const {
    if (!plan_.fetches_ahead) return nullptr;
    return x_ + row * arguments_.x.strides[2] + (column - arguments_.window.padding.left) * arguments_.x.strides[3];
  }

  /// Whether x itself has `count` columns of these rows, from column `first` of the padded image on.
  bool is_whole(const T* const* rows, int row_count, std::int64_t first, std::int64_t count) const {
    const std::int64_t left = first - arguments_.window.padding.left;
    return plan_.direct && left >= 0 && left + count <= arguments_.x.sizes[3] &&
           std::find(rows, rows + row_count, nullptr) == rows + row_count;
  }

  /// Pointers to `count` columns of a row from column `first` of the padded image on.
  void point_to_row(const T* row, std::int64_t first, std::int64_t count, const T** at) const {
    if (!plan_.direct) {
      for (std::int64_t j = 0; j < count; ++j) at[j] = row + (first + j) * channels_;
      return;
    }
    const std::int64_t left = first - arguments_.window.padding.left;
    const std::int64_t begin = row == nullptr ? count : std::clamp<std::int64_t>(-left, 0, count);
    const std::int64_t end = row == nullptr ? count : std::clamp(arguments_.x.sizes[3] - left, begin, count);
    const std::int64_t stride = arguments_.x.strides[3];
    for (std::int64_t j = 0; j < begin; ++j) at[j] = zeros_;
    for (std::int64_t j = begin; j < end; ++j) at[j] = row + (left + j) * stride;
    for (std::int64_t j = end; j < count; ++j) at[j] = zeros_;
  }

  void compute_taps(std::int64_t row, const BlockOutput<T>& output, Moments<T>& moments) {
    const Window& window = arguments_.window;
    std::int64_t tap_count = 0;
    for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
      const std::int64_t input_row = row * window.stride[0] - window.padding.top + kh * window.dilation[0];
      if (input_row < 0 || input_row >= arguments_.x.sizes[2]) continue;
      const T* input = ring_row(input_row);
      for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw) {
        taps_[tap_count++] = {kh * window.kernel[1] + kw, input + kw * window.dilation[1] * channels_};
      }
    }
    T* to = output.rows == nullptr ? unstored_ : output.rows[0];
    const std::int64_t pitch = output.rows == nullptr ? channels_ : output.pitch;
    depthwise_taps_row<T>(taps_, tap_count, window.stride[1] * channels_, parameters_.weights(block_), channels_, to,
                          pitch, plan_.output_columns);
    if (moments) moments.add_tile(to, plan_.output_columns, pitch, channels_);
  }

  const DepthwiseArguments& arguments_;
  const DepthwisePlan<T>& plan_;
  const DepthwiseParameters<T>& parameters_;
  PaddedRowRing<T> ring_;
  T* zeros_ = nullptr;
  Tap<T>* taps_ = nullptr;
  T* unstored_ = nullptr;

  std::int64_t image_ = 0, block_ = 0, channels_ = 0;
  const T* x_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
