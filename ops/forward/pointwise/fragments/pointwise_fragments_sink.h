/// Pointwise convolution by fragments, forward: what happens to finished outputs.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_runs.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_kernel.h"

namespace fusedsc::gpu {

/// Bias, statistics, epilogue, and into memory, a column of runs at a time.
template <class T, class Sweep, bool kFused, bool kClamps>
class FragmentSink {
 public:
  using A = Accumulator<T>;
  static constexpr std::size_t kFinishBytes = kFused ? kMergedItemsBytes<Sweep, 3> : 0;

  FUSEDSC_DEVICE FragmentSink(const PointwiseParameters& p, const PointwiseShare& share, int first_channel)
      : p_(p), share_(share), first_channel_(first_channel), channels_(p.product.channels - first_channel) {}

  /// An owner's column from `channel` on; read(i, run) has a position's sums.
  template <class Runs, class Read>
  FUSEDSC_DEVICE void take(int owner, const Runs& runs, int channel, int count, const Read& read) {
    if (runs.has_all()) take_those<true>(owner, runs, channel, count, read);
    else take_those<false>(owner, runs, channel, count, read);
  }

  template <std::size_t kBytes>
  FUSEDSC_DEVICE void finish(SharedMemory<A, kBytes> memory) {
    if constexpr (kFused) {
      if (p_.partials == nullptr) return;
      A values[Sweep::kItems][3];
#pragma unroll
      for (int i = 0; i < Sweep::kItems; ++i) {
        const auto& moments = moments_[i / kRun];
        values[i][0] = moments.mean(i % kRun);
        values[i][1] = moments.m2(i % kRun);
        values[i][2] = moments.count;
      }
      leave_statistics<Sweep>(p_, share_, first_channel_, memory, values);
    }
  }

 private:
  static constexpr int kRun = Sweep::kRun;

  template <bool kAll, class Runs, class Read>
  FUSEDSC_DEVICE void take_those(int owner, const Runs& runs, int channel, int count, const Read& read) {
    A bias[kRun];
    load_run_items<Sweep>(p_.bias, first_item(), channels_, A(0), bias, T(), owner);
    const RunColumn<Sweep, T> to(p_.y, share_.group, runs.first, channel, count);
    const auto finish = [&](int i, const auto& use) {
      A y[kRun];
      read(i, y);
#pragma unroll
      for (int v = 0; v < kRun; ++v) y[v] += bias[v];
      use(y);
      to.store(Runs::offset(i), y);
    };
    const auto for_each = [&](const auto& use) {
#pragma unroll
      for (int i = 0; i < Runs::kCount; ++i) {
        if (kAll || runs.has(i)) finish(i, [&](A(&y)[kRun]) { use(i, y); });
      }
    };
    if constexpr (!kFused) {
      for_each([](int, const A(&)[kRun]) {});
    } else if (p_.partials != nullptr) {
      auto& moments = moments_[owner];
      for_each([&](int i, const A(&y)[kRun]) {
        if (i == 0 || !kAll) moments.begin(y);
        moments.add_one(y);
        if constexpr (!kAll) moments.count += 1;
      });
      if constexpr (kAll) moments.count += Runs::kCount;
    } else {
      load_run_items<Sweep>(p_.epilogue.scale, first_item(), channels_, A(1), scale_, A(), owner);
      load_run_items<Sweep>(p_.epilogue.shift, first_item(), channels_, A(0), shift_, A(), owner);
      if constexpr (kAll) {
        for_each_run<Sweep, T>(p_.residual, share_.group, runs, channel, count,
                               [&](int i, const auto& run) { finish(i, [&](A(&y)[kRun]) { pass(run, y); }); });
      } else {
        for_each([&](int i, A(&y)[kRun]) {
          Vector<T, kRun> run{};
          if (p_.residual.data != nullptr) {
            run = RunColumn<Sweep, T>(p_.residual, share_.group, runs.first, channel, count).load(Runs::offset(i));
          }
          pass(run, y);
        });
      }
    }
  }

  /// Through the epilogue.
  FUSEDSC_DEVICE void pass(const Vector<T, kRun>& residual, A (&y)[kRun]) const {
    A added[kRun];
    residual.widen(added);
#pragma unroll
    for (int v = 0; v < kRun; ++v) y[v] = y[v] * scale_[v] + shift_[v];
    activate_by<kClamps>(p_.epilogue.activation, y);
    if (p_.residual.data == nullptr) return;  // a zero more would make 0 of -0
#pragma unroll
    for (int v = 0; v < kRun; ++v) y[v] += added[v];
  }

  FUSEDSC_DEVICE int first_item() const { return share_.group * p_.product.channels + first_channel_; }

  const PointwiseParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  A scale_[kRun], shift_[kRun];  ///< of the owner met last
  ShiftedMoments<A, kRun> moments_[kFused ? Sweep::kOwners : 1];
};

}  // namespace fusedsc::gpu
