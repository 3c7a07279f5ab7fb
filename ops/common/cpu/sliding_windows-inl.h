/// The products of a sliding-channel convolution, window by window: the filters that share one are the rows of a
/// product. All tensors are channel-major patches, whose lines a product takes at any equal distances: the filters p,
/// p + cycle, p + 2*cycle... of window p need no rearranging.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_SLIDING_WINDOWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_SLIDING_WINDOWS_INL_H_
#undef FUSEDSC_COMMON_CPU_SLIDING_WINDOWS_INL_H_
#else
#define FUSEDSC_COMMON_CPU_SLIDING_WINDOWS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/gemm-inl.h"
#include "fusedsc/common/cpu/patch-inl.h"
#include "fusedsc/common/cpu/pointwise_plan-inl.h"
#include "fusedsc/common/sliding_channels.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

template <class T>
class SlidingWindows {
 public:
  SlidingWindows(const SlidingChannels& channels, std::int64_t outputs) : channels_(channels), outputs_(outputs) {}

  const SlidingChannels& channels() const { return channels_; }

  /// y[m] = sum over k of W[m][k] * x[first(m) + k], `columns` positions of it.
  void forward(const PackedWeight<T>& weight, const Patch<const T>& x, const Patch<T>& y, std::int64_t columns,
               Prefetcher& prefetcher) const {
    for_each_run({0, channels_.cycle}, [&](const Run& run) {
      Gemm<T> product{.rows = run.filters, .columns = columns, .depth = run.count, .accumulate = run.place > 0};
      weight.set_scalars(0, true, product);
      product.a += run.window * product.a_row + run.place * product.a_depth;
      product.a_row *= channels_.cycle;
      product.b = x.data + run.channel * x.pitch;
      product.b_depth = x.pitch;
      product.c = y.data + run.window * y.pitch;
      product.c_row = channels_.cycle * y.pitch;
      gemm(product, prefetcher);
    });
  }

  /// grad_x[c] = sum of W[m][k] * g[m] over the filters whose windows have c.
  void input_gradient(const PackedWeight<T>& weight, const Patch<const T>& grad, const Patch<T>& grad_x,
                      std::int64_t columns, Prefetcher& prefetcher) const {
    for (std::int64_t c = 0; c < channels_.channels; ++c) {
      std::fill_n(grad_x.data + c * grad_x.pitch, columns, T(0));
    }
    for_each_run({0, channels_.cycle}, [&](const Run& run) {
      Gemm<T> product{.rows = run.count, .columns = columns, .depth = run.filters, .accumulate = true};
      weight.set_scalars(0, false, product);
      product.a += run.window * product.a_depth + run.place * product.a_row;
      product.a_depth *= channels_.cycle;
      product.b = grad.data + run.window * grad.pitch;
      product.b_depth = channels_.cycle * grad.pitch;
      product.c = grad_x.data + run.channel * grad_x.pitch;
      product.c_row = grad_x.pitch;
      gemm(product, prefetcher);
    });
  }

  /// grad_weight[m][k] (+)= sum over positions p of g[m][p] * a[p][first(m) + k], for the filters of some windows; a is
  /// position-major, and readable a vector beyond its end.
  void weight_gradient(const Range& windows, const Patch<const T>& grad, const Patch<const T>& a,
                       std::int64_t positions, const Patch<T>& grad_weight, bool accumulate,
                       Prefetcher& prefetcher) const {
    for_each_run(windows, [&](const Run& run) {
      Gemm<T> product{.rows = run.filters, .columns = run.count, .depth = positions, .accumulate = accumulate};
      product.a = grad.data + run.window * grad.pitch;
      product.a_row = channels_.cycle * grad.pitch;
      product.b = a.data + run.channel;
      product.b_depth = a.pitch;
      product.c = grad_weight.data + run.window * grad_weight.pitch + run.place;
      product.c_row = channels_.cycle * grad_weight.pitch;
      gemm(product, prefetcher);
    });
  }

  /// Steps of the products of `forward`; those of `input_gradient` are about as many.
  std::int64_t steps(std::int64_t columns) const {
    const std::int64_t rows = (outputs_ + channels_.cycle - 1) / channels_.cycle;
    return channels_.cycle * gemm_steps(Gemm<T>{.rows = rows, .columns = columns, .depth = channels_.width});
  }

 private:
  /// Neighbouring channels of a window, and the filters that have it: window, window + cycle...
  struct Run {
    std::int64_t window, filters;
    std::int64_t channel, place, count;  ///< of x, of the weights, and how many
  };

  /// body(run) for every window: once, or twice where it wraps around.
  template <class Body>
  void for_each_run(const Range& windows, const Body& body) const {
    for (std::int64_t p = windows.begin; p < windows.end; ++p) {
      const std::int64_t filters = (outputs_ - p + channels_.cycle - 1) / channels_.cycle;
      const std::int64_t first = channels_.first(p), count = std::min(channels_.width, channels_.channels - first);
      body(Run{p, filters, first, 0, count});
      if (count < channels_.width) body(Run{p, filters, 0, count, channels_.width - count});
    }
  }

  SlidingChannels channels_;
  std::int64_t outputs_;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
