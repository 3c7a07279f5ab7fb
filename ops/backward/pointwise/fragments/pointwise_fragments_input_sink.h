/// Pointwise convolution by fragments, input gradient: what happens to finished gradients.
#pragma once

#include <type_traits>

#include "fusedsc/backward/pointwise/tiles/pointwise_input_kernel.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_runs.h"

namespace fusedsc::gpu {

/// The activation's derivative, sums, a residual's gradient, and into memory, a column of runs at a time.
template <class T, class Sweep, bool kFused, bool kClamps>
class FragmentInputSink {
 public:
  using A = Accumulator<T>;
  static constexpr std::size_t kFinishBytes = kFused ? kMergedItemsBytes<Sweep, 2> : 0;

  FUSEDSC_DEVICE FragmentInputSink(const PointwiseInputGradientParameters& p, const PointwiseShare& share,
                                   int first_channel)
      : p_(p), share_(share), first_channel_(first_channel), channels_(p.product.channels - first_channel) {
    if constexpr (kFused) {
#pragma unroll
      for (auto& sums : sums_) sums[0] = sums[1] = 0;
    }
  }

  /// As FragmentSink's.
  template <class Runs, class Read>
  FUSEDSC_DEVICE void take(int owner, const Runs& runs, int channel, int count, const Read& read) {
    const RunColumn<Sweep, T> to(p_.grad_x, share_.group, runs.first, channel, count);
    const auto finish = [&](int i, const auto& use) {
      A g[kRun];
      read(i, g);
      use(g);
      to.store(Runs::offset(i), g);
    };
    const auto for_each = [&](auto all, const auto& use) {
#pragma unroll
      for (int i = 0; i < Runs::kCount; ++i) {
        if (decltype(all)::value || runs.has(i)) finish(i, [&](A(&g)[kRun]) { use(i, g); });
      }
    };
    if constexpr (!kFused) {
      if (runs.has_all()) for_each(std::true_type(), [](int, const A(&)[kRun]) {});
      else for_each(std::false_type(), [](int, const A(&)[kRun]) {});
    } else {
      const bool has_x = p_.x.data != nullptr, has_added = p_.grad_add.data != nullptr;
      if (has_x) meet(owner);
      if (!runs.has_all() || (has_x && has_added)) {  // whatever there is
        // Each run's address anew: two more columns' would be kept in registers, which a tile's sums take.
        const auto run_of = [&](const PointwiseMatrix& matrix, int i) {
          return RunColumn<Sweep, T>(matrix, share_.group, runs.first, channel, count).load(Runs::offset(i));
        };
        for_each(std::false_type(), [&](int i, A(&g)[kRun]) {
          if (has_x) pass_back(owner, run_of(p_.x, i), count, g);
          if (has_added) add(run_of(p_.grad_add, i), g);
        });
      } else if (has_x) {
        for_each_run<Sweep, T>(p_.x, share_.group, runs, channel, count, [&](int i, const auto& run) {
          finish(i, [&](A(&g)[kRun]) { pass_back(owner, run, count, g); });
        });
      } else {
        for_each_run<Sweep, T>(p_.grad_add, share_.group, runs, channel, count,
                               [&](int i, const auto& run) { finish(i, [&](A(&g)[kRun]) { add(run, g); }); });
      }
    }
  }

  template <std::size_t kBytes>
  FUSEDSC_DEVICE void finish(SharedMemory<A, kBytes> memory) {
    if constexpr (kFused) leave_sums<Sweep>(p_, share_, first_channel_, memory, sums_);
  }

 private:
  static constexpr int kRun = Sweep::kRun;

  FUSEDSC_DEVICE void meet(int owner) {
    const int first = share_.group * p_.product.channels + first_channel_;
    load_run_items<Sweep>(p_.prologue.scale, first, channels_, A(1), scale_, A(), owner);
    load_run_items<Sweep>(p_.prologue.shift, first, channels_, A(0), shift_, A(), owner);
    load_run_items<Sweep>(p_.mean, first, channels_, A(0), mean_, A(), owner);
  }

  /// Through the activation, of the run of x that it had.
  FUSEDSC_DEVICE void pass_back(int owner, const Vector<T, kRun>& run, int count, A (&g)[kRun]) {
    A x[kRun], z[kRun];
    run.widen(x);
#pragma unroll
    for (int v = 0; v < kRun; ++v) z[v] = x[v] * scale_[v] + shift_[v];
    activate_backward_by<kClamps>(p_.prologue.activation, z, g);
#pragma unroll
    for (int v = 0; v < kRun; ++v) {
      auto& sums = sums_[owner * kRun + v];
      const A counted = v < count ? g[v] : A(0);
      sums[0] += counted;
      sums[1] += counted * (x[v] - mean_[v]);
    }
  }

  FUSEDSC_DEVICE static void add(const Vector<T, kRun>& run, A (&g)[kRun]) {
    A more[kRun];
    run.widen(more);
#pragma unroll
    for (int v = 0; v < kRun; ++v) g[v] += more[v];
  }

  const PointwiseInputGradientParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  A scale_[kRun], shift_[kRun], mean_[kRun];  ///< of the owner met last
  A sums_[kFused ? Sweep::kItems : 1][2];
};

}  // namespace fusedsc::gpu
