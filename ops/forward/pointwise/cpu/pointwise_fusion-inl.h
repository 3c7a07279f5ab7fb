/// The per-channel vectors around pointwise passes, dense or sliding-channel: what prologues and epilogues read, and
/// what statistics and sums are gathered in, slice by slice.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_FUSION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_FUSION_INL_H_
#undef FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_FUSION_INL_H_
#else
#define FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_FUSION_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/fusion-inl.h"
#include "fusedsc/common/cpu/slice_sums.h"
#include "fusedsc/common/joined_views.h"
#include "fusedsc/runtime/arena.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// A vector per channel, padded to whole vectors; `copies` of them.
template <class T>
T* take_vectors(Arena& arena, std::int64_t channels, std::int64_t copies = 1) {
  return arena.take<T>(copies * round_up(channels, kLanes<T>));
}

/// Of a forward pass. `Arguments` are those of either operator.
template <class T, class Arguments>
class ForwardFusion {
 public:
  ForwardFusion(const Arguments& arguments, std::int64_t slices, Arena& arena)
      : arguments_(arguments), channels_(arguments.x.sizes[1]), outputs_(arguments.y.sizes[1]), slices_(slices) {
    if (arguments.prologue) {
      scale_ = take_vectors<T>(arena, channels_);
      shift_ = take_vectors<T>(arena, channels_);
    }
    if (arguments.epilogue || arguments.bias) {
      epilogue_scale_ = take_vectors<T>(arena, outputs_);
      epilogue_shift_ = take_vectors<T>(arena, outputs_);
    }
    if (arguments.statistics) {
      mean_ = take_vectors<T>(arena, outputs_, slices);
      m2_ = take_vectors<T>(arena, outputs_, slices);
    }
  }

  /// Fills the vectors; once, before they are used.
  void prepare() {
    if (arguments_.prologue) {
      copy_channels(arguments_.prologue.scale, T(1), 0, channels_, 1, scale_);
      copy_channels(arguments_.prologue.shift, T(0), 0, channels_, 1, shift_);
    }
    if (epilogue_scale_ == nullptr) return;
    // The bias joins the shift: scale*(y + bias) + shift.
    const Epilogue& epilogue = arguments_.epilogue;
    copy_channels(epilogue.scale, T(1), 0, outputs_, 1, epilogue_scale_);
    copy_channels(arguments_.bias, T(0), 0, outputs_, 1, epilogue_shift_);
    const auto* shift = static_cast<const T*>(epilogue.shift.data);
    for (std::int64_t m = 0; m < outputs_; ++m) {
      epilogue_shift_[m] = epilogue_scale_[m] * epilogue_shift_[m] + (shift != nullptr ? shift[m] : T(0));
    }
  }

  AffineVectors<T> prologue() const { return {scale_, shift_, arguments_.prologue.activation}; }
  AffineVectors<T> epilogue() const { return {epilogue_scale_, epilogue_shift_, arguments_.epilogue.activation}; }

  /// A slice's statistics, of nothing yet.
  Moments<T> moments(std::int64_t slice) const {
    if (mean_ == nullptr) return {};
    const std::int64_t pitch = round_up(outputs_, kLanes<T>);
    Moments<T> moments{mean_ + slice * pitch, m2_ + slice * pitch, 0};
    moments.clear(pitch);
    return moments;
  }

  /// What follows the product of a tile; residual() gives its part of the residual.
  template <class Major, class Residual>
  void finish_tile(const Patch<T>& y, const Extent& extent, const Residual& residual, Moments<T>& moments) const {
    if (arguments_.statistics) {
      if (epilogue()) apply_epilogue<Major, T>(y, epilogue(), {}, extent, y);
      add_moments<Major, T>(y, extent, moments);
    } else if (epilogue()) {
      apply_epilogue<Major, T>(y, epilogue(), residual(), extent, y);
    }
  }

  /// Merges the slices' statistics, of positions_of(slice) positions each.
  template <class PositionsOf>
  void finish(const PositionsOf& positions_of) const {
    if (mean_ == nullptr) return;
    merge_slices(mean_, m2_, slices_, round_up(outputs_, kLanes<T>), outputs_, positions_of,
                 static_cast<T*>(arguments_.statistics.mean.data), static_cast<T*>(arguments_.statistics.m2.data));
  }

 private:
  const Arguments& arguments_;
  std::int64_t channels_, outputs_, slices_;
  T* scale_ = nullptr;
  T* shift_ = nullptr;
  T* epilogue_scale_ = nullptr;
  T* epilogue_shift_ = nullptr;
  T* mean_ = nullptr;  ///< [slice][outputs], likewise m2_
  T* m2_ = nullptr;
};

/// The tensors of a backward pass, rows and images joined as far as their strides allow.
struct PointwiseGradientViews {
  ConstTensorView x, grad_y, output, grad_add;
  TensorView grad_x;

  template <class Arguments>
  PointwiseGradientViews(const Arguments& arguments, bool join_images)
      : x(arguments.x),
        grad_y(arguments.grad_y),
        output(arguments.gradient_prologue.output),
        grad_add(arguments.grad_add),
        grad_x(arguments.grad_x) {
    join_all_rows(x, grad_y, output, grad_add, grad_x);
    if (join_images) join_all_images(x, grad_y, output, grad_add, grad_x);
  }
};

/// What a tile sees of the vectors below: those of all channels, and where its slice's sums go.
template <class T>
struct PointwiseGradientVectors {
  AffineVectors<T> prologue;
  GradientVectors<T> gradient_prologue;
  SumVectors<T> sums;      ///< null: not wanted
  T* grad_bias = nullptr;  ///< likewise
};

/// Of a backward pass.
template <class T, class Arguments>
class BackwardFusion {
 public:
  /// `bias_slices`: those that the bias's gradient is summed over.
  BackwardFusion(const Arguments& arguments, std::int64_t slices, std::int64_t bias_slices, Arena& arena)
      : arguments_(arguments),
        channels_(arguments.x.sizes[1]),
        outputs_(arguments.grad_y.sizes[1]),
        slices_(slices),
        bias_slices_(bias_slices) {
    if (arguments.prologue) {
      scale_ = take_vectors<T>(arena, channels_);
      shift_ = take_vectors<T>(arena, channels_);
    }
    if (arguments.gradient_prologue) {
      grad_scale_ = take_vectors<T>(arena, outputs_);
      output_scale_ = take_vectors<T>(arena, outputs_);
      offset_ = take_vectors<T>(arena, outputs_);
    }
    if (arguments.sums) {
      mean_ = take_vectors<T>(arena, channels_);
      sum_grad_ = take_vectors<T>(arena, channels_, slices);
      sum_centered_ = take_vectors<T>(arena, channels_, slices);
    }
    if (arguments.grad_bias) {
      sum_bias_ = take_vectors<T>(arena, outputs_, bias_slices);
      grad_bias_ = take_vectors<T>(arena, outputs_);
    }
  }

  /// Fills the vectors; once, before they are used.
  void prepare() const {
    if (arguments_.prologue) {
      copy_channels(arguments_.prologue.scale, T(1), 0, channels_, 1, scale_);
      copy_channels(arguments_.prologue.shift, T(0), 0, channels_, 1, shift_);
    }
    if (arguments_.gradient_prologue) {
      copy_channels(arguments_.gradient_prologue.grad_scale, T(1), 0, outputs_, 1, grad_scale_);
      copy_channels(arguments_.gradient_prologue.output_scale, T(0), 0, outputs_, 1, output_scale_);
      copy_channels(arguments_.gradient_prologue.offset, T(0), 0, outputs_, 1, offset_);
    }
    if (arguments_.sums) copy_channels(arguments_.sums.mean, T(0), 0, channels_, 1, mean_);
  }

  /// A slice's, its sums zero; BatchNorm's `sums` and the gradient of the `bias` if they are given and wanted here, the
  /// latter of some outputs.
  PointwiseGradientVectors<T> of_slice(std::int64_t slice, bool sums, bool bias, const Range& outputs) const {
    const std::int64_t in_pitch = round_up(channels_, kLanes<T>), out_pitch = round_up(outputs_, kLanes<T>);
    PointwiseGradientVectors<T> vectors{{scale_, shift_, arguments_.prologue.activation},
                                        {grad_scale_, output_scale_, offset_, arguments_.gradient_prologue.output},
                                        {},
                                        nullptr};
    if (sum_grad_ != nullptr && sums) {
      vectors.sums = {mean_, sum_grad_ + slice * in_pitch, sum_centered_ + slice * in_pitch};
      std::fill_n(vectors.sums.grad, in_pitch, T(0));
      std::fill_n(vectors.sums.grad_times_centered, in_pitch, T(0));
    }
    if (sum_bias_ != nullptr && bias) {
      vectors.grad_bias = sum_bias_ + slice * out_pitch;
      std::fill_n(vectors.grad_bias + outputs.begin, round_up(outputs.size(), kLanes<T>), T(0));
    }
    return vectors;
  }

  /// Adds the slices, and stores the results.
  void finish() const {
    const std::int64_t in_pitch = round_up(channels_, kLanes<T>), out_pitch = round_up(outputs_, kLanes<T>);
    if (arguments_.sums) {
      const GradientSums& sums = arguments_.sums;
      add_slices(sum_grad_, slices_, in_pitch, channels_, static_cast<T*>(sums.grad.data));
      add_slices(sum_centered_, slices_, in_pitch, channels_, static_cast<T*>(sums.grad_times_centered.data));
    }
    if (arguments_.grad_bias) {
      add_slices(sum_bias_, bias_slices_, out_pitch, outputs_, grad_bias_);
      with_storage<T>(arguments_.grad_bias.dtype, [&]<class Storage>() HWY_ATTR {
        convert_back<T>(grad_bias_, static_cast<Storage*>(arguments_.grad_bias.data), outputs_);
      });
    }
  }

 private:
  const Arguments& arguments_;
  std::int64_t channels_, outputs_, slices_, bias_slices_;
  T* scale_ = nullptr;
  T* shift_ = nullptr;
  T* grad_scale_ = nullptr;
  T* output_scale_ = nullptr;
  T* offset_ = nullptr;
  T* mean_ = nullptr;
  T* sum_grad_ = nullptr;  ///< [slice][channels], likewise sum_centered_
  T* sum_centered_ = nullptr;
  T* sum_bias_ = nullptr;  ///< [bias slice][outputs]
  T* grad_bias_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
