/// The products of a sliding-channel convolution, window by window: the filters that share one are the rows of a
/// product. What belongs to filters lies in the order of their windows' first channels, so that the filters whose
/// windows have a channel follow one another (cyclically), and are the depth of one product.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_SLIDING_CHANNEL_CPU_SLIDING_WINDOWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_SLIDING_CHANNEL_CPU_SLIDING_WINDOWS_INL_H_
#undef FUSEDSC_FORWARD_SLIDING_CHANNEL_CPU_SLIDING_WINDOWS_INL_H_
#else
#define FUSEDSC_FORWARD_SLIDING_CHANNEL_CPU_SLIDING_WINDOWS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>
#include <vector>

#include "fusedsc/common/cpu/patch-inl.h"
#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/forward/pointwise/cpu/gemm-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_plan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Elements from one line of an operand to the next: an odd number of cache lines, because lines at a multiple of a
/// page would share a few places of the first-level cache.
template <class T>
constexpr std::int64_t spread_pitch(std::int64_t elements) {
  constexpr std::int64_t kLine = kCacheLine / sizeof(T);
  return ((elements + kLine - 1) / kLine | 1) * kLine;
}

template <class T>
class SlidingWindows {
 public:
  SlidingWindows(const SlidingChannels& channels, std::int64_t outputs, const GemmBlocks& blocks)
      : channels_(channels), outputs_(outputs), blocks_(blocks) {
    for (std::int64_t p = 0; p < channels.cycle; ++p) {
      windows_.push_back({p, channels.first(p), 0, (outputs - p + channels.cycle - 1) / channels.cycle});
    }
    std::sort(windows_.begin(), windows_.end(), [](const Window& a, const Window& b) { return a.first < b.first; });
    std::int64_t rows = 0;
    for (Window& window : windows_) {
      window.row = rows;
      rows += window.filters;
    }
    cut_channels();
  }

  const SlidingChannels& channels() const { return channels_; }

  /// Elements of a weight as the products read it.
  std::int64_t weight_size() const { return outputs_ * spread_pitch<T>(channels_.channels); }

  /// [filter][channel], in the windows' order and of the channels of the windows only: the others are never read.
  void pack(const ConstTensorView& weight, const Execution& execution, T* to) const {
    const std::int64_t count = channels_.cycle, pitch = spread_pitch<T>(channels_.channels);
    const std::int64_t lanes = weight_lanes(execution, weight.elements(), count);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      const Range own = part_of(count, lanes, lane);
      with_storage<T>(weight.dtype, [&]<class Storage>() HWY_ATTR {
        for_each_run(own, [&](const Run& run) {
          for (std::int64_t i = 0; i < run.window->filters; ++i) {
            const std::int64_t filter = run.window->index + i * channels_.cycle;
            const Storage* from = element<Storage>(weight, filter, run.place, 0, 0);
            T* line = to + (run.window->row + i) * pitch + run.channel;
            for (std::int64_t k = 0; k < run.count; ++k) line[k] = scalar_value(from[k * weight.strides[1]]);
          }
        });
      });
    });
  }

  /// to = from with its lines, one per filter, in the windows' order.
  void sort(const Patch<const T>& from, const Patch<T>& to, std::int64_t positions) const {
    for (const Window& window : windows_) {
      for (std::int64_t i = 0; i < window.filters; ++i) {
        const T* line = from.data + (window.index + i * channels_.cycle) * from.pitch;
        convert<T>(line, to.data + (window.row + i) * to.pitch, positions);
      }
    }
  }

  /// y[m] = sum over k of weight[m][first(m) + k] * x[first(m) + k], `columns` positions of it.
  void forward(const T* weight, const Patch<const T>& x, const Patch<T>& y, std::int64_t columns,
               Prefetcher& prefetcher) const {
    const std::int64_t pitch = spread_pitch<T>(channels_.channels);
    for_each_run({0, channels_.cycle}, [&](const Run& run) {
      gemm(Gemm<T>{.rows = run.window->filters,
                   .columns = columns,
                   .depth = run.count,
                   .a = weight + run.window->row * pitch + run.channel,
                   .a_row = pitch,
                   .b = x.data + run.channel * x.pitch,
                   .b_depth = x.pitch,
                   .c = y.data + run.window->index * y.pitch,
                   .c_row = channels_.cycle * y.pitch,
                   .accumulate = run.place > 0,
                   .blocks = blocks_},
           prefetcher);
    });
  }

  /// grad_x[c] = sum of weight[m][c] * grad[m] over the filters whose windows have c; grad is sorted.
  void input_gradient(const T* weight, const Patch<const T>& grad, const Patch<T>& grad_x, std::int64_t columns,
                      Prefetcher& prefetcher) const {
    const std::int64_t pitch = spread_pitch<T>(channels_.channels);
    for (const Segment& segment : segments_) {
      gemm(Gemm<T>{.rows = segment.count,
                   .columns = columns,
                   .depth = segment.filters,
                   .a = weight + segment.row * pitch + segment.channel,
                   .a_row = 1,
                   .a_depth = pitch,
                   .b = grad.data + segment.row * grad.pitch,
                   .b_depth = grad.pitch,
                   .c = grad_x.data + segment.channel * grad_x.pitch,
                   .c_row = grad_x.pitch,
                   .accumulate = segment.continues,
                   .blocks = blocks_},
           prefetcher);
    }
  }

  /// grad_weight[m][k] (+)= sum over positions p of grad[m][p] * a[p][first(m) + k], for the filters of some windows;
  /// grad is sorted, grad_weight is not, a is position-major and readable a vector beyond its end.
  void weight_gradient(const Range& windows, const Patch<const T>& grad, const Patch<const T>& a,
                       std::int64_t positions, const Patch<T>& grad_weight, bool accumulate,
                       Prefetcher& prefetcher) const {
    for_each_run(windows, [&](const Run& run) {
      gemm(Gemm<T>{.rows = run.window->filters,
                   .columns = run.count,
                   .depth = positions,
                   .a = grad.data + run.window->row * grad.pitch,
                   .a_row = grad.pitch,
                   .b = a.data + run.channel,
                   .b_depth = a.pitch,
                   .c = grad_weight.data + run.window->index * grad_weight.pitch + run.place,
                   .c_row = channels_.cycle * grad_weight.pitch,
                   .accumulate = accumulate,
                   .blocks = blocks_},
           prefetcher);
    });
  }

  /// Steps of the products of `forward`; those of the gradients are about as many.
  std::int64_t steps(std::int64_t columns) const {
    const std::int64_t rows = (outputs_ + channels_.cycle - 1) / channels_.cycle;
    return channels_.cycle *
           gemm_steps(Gemm<T>{.rows = rows, .columns = columns, .depth = channels_.width, .blocks = blocks_});
  }

 private:
  /// A window and the filters that have it: index, index + cycle...
  struct Window {
    std::int64_t index, first;
    std::int64_t row, filters;  ///< their first row in the windows' order, and how many
  };

  /// Neighbouring channels of a window.
  struct Run {
    const Window* window;
    std::int64_t channel, place, count;  ///< of x, of the filters' weights, and how many
  };

  /// Neighbouring channels that the same windows have, and neighbouring rows of filters that have these.
  struct Segment {
    std::int64_t channel, count, row, filters;
    bool continues;  ///< adds to what the segment before computed
  };

  /// body(run) for some windows: once each, or twice where one wraps around.
  template <class Body>
  void for_each_run(const Range& windows, const Body& body) const {
    for (std::int64_t i = windows.begin; i < windows.end; ++i) {
      const Window& window = windows_[static_cast<std::size_t>(i)];
      const std::int64_t count = std::min(channels_.width, channels_.channels - window.first);
      body(Run{&window, window.first, 0, count});
      if (count < channels_.width) body(Run{&window, 0, count, channels_.width - count});
    }
  }

  /// Makes the segments: cuts wherever a window begins or ends.
  void cut_channels() {
    std::vector<std::int64_t> cuts{0, channels_.channels};
    for (const Window& window : windows_) {
      cuts.push_back(window.first);
      cuts.push_back((window.first + channels_.width) % channels_.channels);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      bool continues = false;
      for (const Window& window : windows_) {
        if (channels_.place(window.first, cuts[i]) >= channels_.width) continue;
        if (continues && segments_.back().row + segments_.back().filters == window.row) {
          segments_.back().filters += window.filters;
        } else {
          segments_.push_back({cuts[i], cuts[i + 1] - cuts[i], window.row, window.filters, continues});
        }
        continues = true;
      }
    }
  }

  SlidingChannels channels_;
  std::int64_t outputs_;
  GemmBlocks blocks_;
  std::vector<Window> windows_;  ///< by their first channels
  std::vector<Segment> segments_;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
