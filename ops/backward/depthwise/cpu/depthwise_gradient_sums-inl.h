/// What a depthwise backward pass on tiles adds up over positions: the weight's gradient, the bias's, and the sums that
/// BatchNorm's backward needs. Partial sums belong to lanes or slices, and are added in their order.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_SUMS_INL_H_
#undef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_SUMS_INL_H_
#else
#define FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_SUMS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/common/cpu/fusion-inl.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_plan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Channels are counted with their repeats.
template <class T>
class DepthwiseGradientSums {
 public:
  DepthwiseGradientSums() = default;
  DepthwiseGradientSums(const DepthwiseBackwardArguments& arguments, const ChannelBlocks& blocks,
                        std::int64_t tap_count, std::int64_t slices, std::int64_t lanes, Arena& arena)
      : arguments_(&arguments), blocks_(blocks), tap_count_(tap_count), slices_(slices), lanes_(lanes) {
    const std::int64_t size = blocks.count() * blocks.pitch;
    if (arguments.sums) {
      mean_ = arena.take<T>(size);
      sums_ = arena.take<T>(slices * 2 * size);
    }
    if (arguments.grad_weight) weight_ = arena.take<T>(lanes * tap_count * size);
    if (arguments.grad_bias) bias_ = arena.take<T>(lanes * size);
  }

  void copy_mean() const {
    for (std::int64_t b = 0; mean_ != nullptr && b < blocks_.count(); ++b) {
      copy_channels(arguments_->sums.mean, T(0), blocks_.first(b), blocks_.size(b), multiplier(),
                    mean_ + b * blocks_.pitch);
    }
  }

  void clear_lane(std::int64_t lane) const {
    const std::int64_t size = blocks_.count() * blocks_.pitch;
    if (weight_ != nullptr) std::fill_n(weight_of(lane, 0), tap_count_ * size, T(0));
    if (bias_ != nullptr) std::fill_n(bias_of(lane, 0), size, T(0));
  }

  /// BatchNorm's sums of a slice.
  void clear(std::int64_t slice, std::int64_t block) const {
    if (sums_ == nullptr) return;
    for (const int which : {0, 1}) std::fill_n(sums_of(slice, which, block), blocks_.pitch, T(0));
  }
  SumVectors<T> vectors(std::int64_t slice, std::int64_t block) const {
    if (sums_ == nullptr) return {};
    return {mean_ + block * blocks_.pitch, sums_of(slice, 0, block), sums_of(slice, 1, block)};
  }

  /// [tap][pitch] and [pitch] of a lane; the bias's null where it is not wanted.
  T* weight_of(std::int64_t lane, std::int64_t block) const {
    return weight_ + (lane * blocks_.count() + block) * tap_count_ * blocks_.pitch;
  }
  T* bias_of(std::int64_t lane, std::int64_t block) const {
    return bias_ == nullptr ? nullptr : bias_ + (lane * blocks_.count() + block) * blocks_.pitch;
  }

  /// Adds everything up, and stores it.
  void reduce() const {
    if (weight_ != nullptr) reduce_weight();
    if (bias_ != nullptr) reduce_bias();
    if (sums_ != nullptr) reduce_sums();
  }

 private:
  std::int64_t multiplier() const { return channel_multiplier(arguments_->x, arguments_->weight); }

  T* sums_of(std::int64_t slice, std::int64_t which, std::int64_t block) const {
    return sums_ + ((slice * 2 + which) * blocks_.count() + block) * blocks_.pitch;
  }

  void reduce_weight() const {
    const std::int64_t lane_size = blocks_.count() * tap_count_ * blocks_.pitch;
    for (std::int64_t lane = 1; lane < lanes_; ++lane) add_in_place(weight_, weight_of(lane, 0), lane_size);
    for (std::int64_t b = 0; b < blocks_.count(); ++b) {
      const std::int64_t pitch = blocks_.template padded<T>(b);
      for_each_tap_row(arguments_->grad_weight, blocks_.first(b), blocks_.size(b),
                       [&](const TensorView& rows, const TilePart& part, std::int64_t tap) {
                         store_tile<T>(weight_of(0, b) + tap * pitch, rows, part);
                       });
    }
  }

  void reduce_bias() const {
    const std::int64_t lane_size = blocks_.count() * blocks_.pitch;
    for (std::int64_t lane = 1; lane < lanes_; ++lane) add_in_place(bias_, bias_of(lane, 0), lane_size);
    with_storage<T>(arguments_->grad_bias.dtype, [&]<class Storage>() {
      for (std::int64_t c = 0; c < blocks_.channels; ++c) {
        static_cast<Storage*>(arguments_->grad_bias.data)[c] =
            scalar_storage<Storage>(bias_[c / blocks_.block * blocks_.pitch + c % blocks_.block]);
      }
    });
  }

  /// The repeats of a channel join.
  void reduce_sums() const {
    T* const results[] = {static_cast<T*>(arguments_->sums.grad.data),
                          static_cast<T*>(arguments_->sums.grad_times_centered.data)};
    for (const int which : {0, 1}) {
      std::fill_n(results[which], arguments_->x.sizes[1], T(0));
      for (std::int64_t b = 0; b < blocks_.count(); ++b) {
        for (std::int64_t s = 1; s < slices_; ++s)
          add_in_place(sums_of(0, which, b), sums_of(s, which, b), blocks_.pitch);
        for (std::int64_t c = 0; c < blocks_.size(b); ++c) {
          results[which][(blocks_.first(b) + c) / multiplier()] += sums_of(0, which, b)[c];
        }
      }
    }
  }

  const DepthwiseBackwardArguments* arguments_ = nullptr;
  ChannelBlocks blocks_;
  std::int64_t tap_count_ = 0, slices_ = 0, lanes_ = 0;
  T* mean_ = nullptr;
  T* sums_ = nullptr;    ///< [slice][2][block][pitch]: sum of g, sum of g*(x - mean)
  T* weight_ = nullptr;  ///< [lane][block][tap][pitch]
  T* bias_ = nullptr;    ///< [lane][block][pitch]
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
