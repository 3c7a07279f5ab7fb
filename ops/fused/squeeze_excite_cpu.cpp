#include "fusedsc/fused/squeeze_excite_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/squeeze_excite_cpu.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/common/cpu/pass-inl.h"
#include "fusedsc/common/cpu/positions.h"
#include "fusedsc/common/cpu/seam-inl.h"
#include "fusedsc/common/cpu/slice_sums.h"
#include "fusedsc/runtime/arena.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

// ---------------------------------------------------------------------------------------------------------- on patches

/// sums += the sum over positions of activation(scale*x + shift), each times its element of `factors` where there are
/// any.
template <class Major, class T>
void add_activated(Patch<const T> x, AffineVectors<T> affine, Patch<const T> factors, Extent extent, T* sums) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_unit<Major>(extent.channels, [=]<int kCount>(std::int64_t first) HWY_ATTR {
      const Coefficients<Major, kCount, T> scale(affine.scale, first), shift(affine.shift, first);
      Vec<T> sum[kCount];
      HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) sum[u] = hn::Zero(Tag<T>());
      // Also of the closure, where this is a function of its own.
      const Patch<const T> from = x, by = factors;
      const std::int64_t positions = extent.positions;
      for (std::int64_t p = 0; p < positions; p += Major::kPositions) {
        const std::int64_t left = positions - p;
        HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
          const std::int64_t c = first + u * Major::kChannels;
          const auto z = hn::MulAdd(Major::load(Major::at(from, c, p), left), scale.of[u], shift.of[u]);
          auto value = Major::zero_behind(activate<kActivation, T>(z), left);
          if (by.data != nullptr) value = hn::Mul(value, Major::load(Major::at(by, c, p), left));
          sum[u] = hn::Add(sum[u], value);
        }
      }
      for (int u = 0; u < kCount; ++u) add_total<Major>(sum[u], sums, first + u * Major::kChannels);
    });
  });
}

/// to = activation(scale*x + shift) * gate
template <class Major, class T>
void apply_gate(Patch<const T> x, AffineVectors<T> affine, const T* gate, Extent extent, Patch<T> to) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_vector<Major>(extent, [=](std::int64_t c, std::int64_t p, std::int64_t left) HWY_ATTR {
      const auto z = hn::MulAdd(Major::load(Major::at(x, c, p), left), Major::coefficient(affine.scale, c),
                                Major::coefficient(affine.shift, c));
      const auto value = hn::Mul(activate<kActivation, T>(z), Major::coefficient(gate, c));
      Major::store(value, Major::at(to, c, p), left);
    });
  });
}

/// to = (grad*gate + offset) * activation'(scale*x + shift), and its sums; `to` may be `grad`.
template <class Major, class T>
void apply_gate_backward(Patch<const T> grad, const T* gate, const T* offset, Patch<const T> x, AffineVectors<T> affine,
                         SumVectors<T> sums, Extent extent, Patch<T> to) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_unit<Major>(extent.channels, [=]<int kCount>(std::int64_t first) HWY_ATTR {
      const Coefficients<Major, kCount, T> scale(affine.scale, first), shift(affine.shift, first), factor(gate, first),
          added(offset, first), mean(sums.mean, first);
      Vec<T> sum[kCount], sum_centered[kCount];
      HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) sum[u] = sum_centered[u] = hn::Zero(Tag<T>());
      const Patch<const T> from = x, from_grad = grad;
      const Patch<T> result = to;
      const std::int64_t positions = extent.positions;
      for (std::int64_t p = 0; p < positions; p += Major::kPositions) {
        const std::int64_t left = positions - p;
        HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
          const std::int64_t c = first + u * Major::kChannels;
          const auto value = Major::load(Major::at(from, c, p), left);
          const auto z = hn::MulAdd(value, scale.of[u], shift.of[u]);
          const auto g_activated = hn::MulAdd(Major::load(Major::at(from_grad, c, p), left), factor.of[u], added.of[u]);
          const auto g = Major::zero_behind(activate_backward<kActivation, T>(g_activated, z), left);
          sum[u] = hn::Add(sum[u], g);
          sum_centered[u] = hn::MulAdd(g, hn::Sub(value, mean.of[u]), sum_centered[u]);
          Major::store(g, Major::at(result, c, p), left);
        }
      }
      for (int u = 0; u < kCount; ++u) {
        add_total<Major>(sum[u], sums.grad, first + u * Major::kChannels);
        add_total<Major>(sum_centered[u], sums.grad_times_centered, first + u * Major::kChannels);
      }
    });
  });
}

// ------------------------------------------------------------------------------------------------------- over tensors

/// Bytes of a part's patches: they stay in the first-level cache.
inline constexpr std::int64_t kPartBytes = 16 << 10;

/// Some channels of one image: all of the positions that one thread sees.
struct Maps {
  std::int64_t image = 0, channel = 0, channels = 0;
  std::int64_t group = 0;  ///< of images
};

/// What the passes share. A task is a block of channels of a group of images, so that the sums over a map are one
/// thread's; those over the images are kept per group.
template <class T, template <class> class Order>
class MapsPass {
 public:
  using Major = Order<T>;

  MapsPass(const ConstTensorView& x, int patches, int threads, void* workspace)
      : sizes_(x.sizes),
        groups_(std::min<std::int64_t>(sizes_[0], Slices::kSlices)),
        pitch_(round_up(sizes_[1], kLanes<T>)),
        elements_(kPartBytes / static_cast<std::int64_t>(sizeof(T)) / patches),
        arena_(workspace) {
    const std::int64_t wanted = (Slices::kSlices + groups_ - 1) / groups_;
    block_ = round_up((sizes_[1] + wanted - 1) / wanted, std::max(Major::kChannels, kLeastChannels));
    blocks_ = (sizes_[1] + block_ - 1) / block_;
    lanes_ = std::min<std::int64_t>(threads, groups_ * blocks_);
    scale_ = arena_.take<T>(pitch_);
    shift_ = arena_.take<T>(pitch_);
    const std::int64_t positions = std::max(elements_ / least_channels() / kLanes<T>, std::int64_t{1}) * kLanes<T>;
    columns_ = std::min(positions, sizes_[3]);
    maps_ = Major::kChannelMajor ? std::clamp<std::int64_t>(elements_ / sizes_[3], 1, block_) : block_;
  }

  std::size_t workspace_bytes() const { return arena_.used(); }

 protected:
  void copy_affine(const ConstChannelVector& scale, const ConstChannelVector& shift) const {
    copy_channels(scale, T(1), 0, sizes_[1], 1, scale_);
    copy_channels(shift, T(0), 0, sizes_[1], 1, shift_);
  }
  AffineVectors<T> affine(const Maps& maps, Activation activation) const {
    return {scale_ + maps.channel, shift_ + maps.channel, activation};
  }

  /// body(maps, lane)
  template <class Body>
  void for_each_maps(const Execution& execution, const Body& body) const {
    run_lanes(execution, lanes_, [&](std::int64_t lane) {
      const Range tasks = part_of(groups_ * blocks_, lanes_, lane);
      for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
        const std::int64_t group = task / blocks_, first = task % blocks_ * block_;
        const std::int64_t end = std::min(first + block_, sizes_[1]);
        const Range images = part_of(sizes_[0], groups_, group);
        for (std::int64_t image = images.begin; image < images.end; ++image) {
          for (std::int64_t c = first; c < end; c += maps_) body(Maps{image, c, std::min(maps_, end - c), group}, lane);
        }
      }
    });
  }

  /// body(part) for all positions of some maps.
  template <class Body>
  void for_each_part(const Maps& maps, const Body& body) const {
    for (std::int64_t row = 0; row < sizes_[2]; ++row) {
      for (std::int64_t column = 0; column < sizes_[3]; column += columns_) {
        body(TilePart{.image = maps.image,
                      .row = row,
                      .column = column,
                      .positions = std::min(columns_, sizes_[3] - column),
                      .channel = maps.channel,
                      .channels = maps.channels});
      }
    }
  }

  /// Memory of every lane: a patch, or one value for each of a task's channels.
  T* take_patches(Arena& arena) const { return arena.take<T>(lanes_ * patch_size()); }
  T* patch_in(T* patches, std::int64_t lane) const {
    return patches == nullptr ? nullptr : patches + lane * patch_size();
  }
  /// Where a part is written: in the tensor itself, if there is no buffer.
  Patch<T> patch_to_write(const TensorView& to, const TilePart& part, T* buffer) const {
    if (buffer == nullptr) return patch_of<Major, T>(to, part);
    return {buffer, Major::pitch(part.positions, part.channels)};
  }
  T* take_values(Arena& arena) const { return arena.take<T>(lanes_ * values_size()); }
  T* values_in(T* values, std::int64_t lane) const { return values + lane * values_size(); }
  std::int64_t values_size() const { return round_up(maps_, kLanes<T>); }

  /// One value of each map, from and to a tensor of them.
  void load_values(const ConstTensorView& from, const Maps& maps, T* to) const {
    with_storage<T>(from.dtype, [&]<class Storage>() {
      const Storage* first = element<Storage>(from, maps.image, maps.channel, 0, 0);
      for (std::int64_t c = 0; c < maps.channels; ++c) to[c] = scalar_value(first[c * from.strides[1]]);
    });
    std::fill(to + maps.channels, to + values_size(), T(0));
  }
  void store_values(const T* from, const Maps& maps, T divisor, const TensorView& to) const {
    with_storage<T>(to.dtype, [&]<class Storage>() {
      Storage* first = element<Storage>(to, maps.image, maps.channel, 0, 0);
      for (std::int64_t c = 0; c < maps.channels; ++c) {
        first[c * to.strides[1]] = scalar_storage<Storage>(from[c] / divisor);
      }
    });
  }

  T positions() const { return static_cast<T>(sizes_[2] * sizes_[3]); }
  std::int64_t channels() const { return sizes_[1]; }
  std::int64_t groups() const { return groups_; }
  std::int64_t pitch() const { return pitch_; }
  Arena& arena() { return arena_; }

 private:
  static constexpr std::int64_t kLeastChannels = Major::kChannelMajor ? 1 : 16;  ///< of a block: a cache line of them

  /// Of a part.
  std::int64_t least_channels() const { return Major::kChannelMajor ? 1 : block_; }
  std::int64_t patch_size() const { return round_up(Major::size(columns_, maps_), kLanes<T>); }

  Sizes sizes_;
  std::int64_t groups_, pitch_;
  std::int64_t elements_;  ///< of a patch, about
  Arena arena_;
  std::int64_t block_, blocks_;  ///< channels of a task, and into how many blocks they all are cut
  std::int64_t lanes_;
  std::int64_t columns_, maps_;  ///< of a part
  T* scale_;
  T* shift_;
};

/// The arguments with the rows of their maps joined, where the strides allow it.
SqueezeArguments joined(SqueezeArguments arguments) {
  join_all_rows(arguments.x);
  return arguments;
}
ExciteArguments joined(ExciteArguments arguments) {
  join_all_rows(arguments.x, arguments.out);
  return arguments;
}
ExciteBackwardArguments joined(ExciteBackwardArguments arguments) {
  join_all_rows(arguments.x, arguments.grad_out);
  return arguments;
}
SqueezeBackwardArguments joined(SqueezeBackwardArguments arguments) {
  join_all_rows(arguments.x, arguments.grad_out, arguments.grad);
  return arguments;
}

bool is_channel_major(const SqueezeArguments& a) { return all_contiguous(a.x); }
bool is_channel_major(const ExciteArguments& a) { return all_contiguous(a.x, a.out); }
bool is_channel_major(const ExciteBackwardArguments& a) { return all_contiguous(a.x, a.grad_out); }
bool is_channel_major(const SqueezeBackwardArguments& a) { return all_contiguous(a.x, a.grad_out, a.grad); }

template <class T, template <class> class Order>
class Squeeze : public MapsPass<T, Order> {
 public:
  using Arguments = SqueezeArguments;
  using Major = Order<T>;

  Squeeze(const Arguments& arguments, int threads, void* workspace)
      : MapsPass<T, Order>(joined(arguments).x, 1, threads, workspace), a_(joined(arguments)) {
    sums_ = this->take_values(this->arena());
    if (!Major::is_readable(a_.x)) x_ = this->take_patches(this->arena());
  }

  void run(const Execution& execution) const {
    this->copy_affine(a_.scale, a_.shift);
    this->for_each_maps(execution, [&](const Maps& maps, std::int64_t lane) {
      T* sums = this->values_in(sums_, lane);
      std::fill_n(sums, this->values_size(), T(0));
      const auto affine = this->affine(maps, a_.activation);
      this->for_each_part(maps, [&](const TilePart& part) {
        const auto x = read_patch<Major, T>(a_.x, part, Major::is_readable(a_.x), this->patch_in(x_, lane));
        add_activated<Major, T>(x, affine, {}, {part.positions, part.channels}, sums);
      });
      this->store_values(sums, maps, this->positions(), a_.mean);
    });
  }

 private:
  Arguments a_;
  T* sums_ = nullptr;
  T* x_ = nullptr;
};

template <class T, template <class> class Order>
class ExciteBackward : public MapsPass<T, Order> {
 public:
  using Arguments = ExciteBackwardArguments;
  using Major = Order<T>;

  ExciteBackward(const Arguments& arguments, int threads, void* workspace)
      : MapsPass<T, Order>(joined(arguments).x, 2, threads, workspace), a_(joined(arguments)) {
    sums_ = this->take_values(this->arena());
    if (!Major::is_readable(a_.x)) x_ = this->take_patches(this->arena());
    if (!Major::is_readable(a_.grad_out)) grad_out_ = this->take_patches(this->arena());
  }

  void run(const Execution& execution) const {
    this->copy_affine(a_.scale, a_.shift);
    this->for_each_maps(execution, [&](const Maps& maps, std::int64_t lane) {
      T* sums = this->values_in(sums_, lane);
      std::fill_n(sums, this->values_size(), T(0));
      const auto affine = this->affine(maps, a_.activation);
      this->for_each_part(maps, [&](const TilePart& part) {
        const auto x = read_patch<Major, T>(a_.x, part, Major::is_readable(a_.x), this->patch_in(x_, lane));
        const auto grad_out =
            read_patch<Major, T>(a_.grad_out, part, Major::is_readable(a_.grad_out), this->patch_in(grad_out_, lane));
        add_activated<Major, T>(x, affine, grad_out, {part.positions, part.channels}, sums);
      });
      this->store_values(sums, maps, T(1), a_.grad_gate);
    });
  }

 private:
  Arguments a_;
  T* sums_ = nullptr;
  T* x_ = nullptr;
  T* grad_out_ = nullptr;
};

template <class T, template <class> class Order>
class Excite : public MapsPass<T, Order> {
 public:
  using Arguments = ExciteArguments;
  using Major = Order<T>;

  Excite(const Arguments& arguments, int threads, void* workspace)
      : MapsPass<T, Order>(joined(arguments).x, 2, threads, workspace), a_(joined(arguments)) {
    gate_ = this->take_values(this->arena());
    if (!Major::is_readable(a_.x)) x_ = this->take_patches(this->arena());
    if (!Major::is_readable(a_.out)) out_ = this->take_patches(this->arena());
  }

  void run(const Execution& execution) const {
    this->copy_affine(a_.scale, a_.shift);
    this->for_each_maps(execution, [&](const Maps& maps, std::int64_t lane) {
      T* gate = this->values_in(gate_, lane);
      this->load_values(a_.gate, maps, gate);
      const auto affine = this->affine(maps, a_.activation);
      this->for_each_part(maps, [&](const TilePart& part) {
        const auto x = read_patch<Major, T>(a_.x, part, Major::is_readable(a_.x), this->patch_in(x_, lane));
        const auto out = this->patch_to_write(a_.out, part, this->patch_in(out_, lane));
        apply_gate<Major, T>(x, affine, gate, {part.positions, part.channels}, out);
        if (out_ != nullptr) Major::store(out.data, a_.out, part);
      });
    });
  }

 private:
  Arguments a_;
  T* gate_ = nullptr;
  T* x_ = nullptr;
  T* out_ = nullptr;
};

template <class T, template <class> class Order>
class SqueezeBackward : public MapsPass<T, Order> {
 public:
  using Arguments = SqueezeBackwardArguments;
  using Major = Order<T>;

  SqueezeBackward(const Arguments& arguments, int threads, void* workspace)
      : MapsPass<T, Order>(joined(arguments).x, 3, threads, workspace), a_(joined(arguments)) {
    gate_ = this->take_values(this->arena());
    offset_ = this->take_values(this->arena());
    mean_ = this->arena().template take<T>(this->pitch());
    sum_grad_ = this->arena().template take<T>(this->groups() * this->pitch());
    sum_centered_ = this->arena().template take<T>(this->groups() * this->pitch());
    if (!Major::is_readable(a_.x)) x_ = this->take_patches(this->arena());
    if (!Major::is_readable(a_.grad_out)) grad_out_ = this->take_patches(this->arena());
    if (!Major::is_readable(a_.grad)) grad_ = this->take_patches(this->arena());
  }

  void run(const Execution& execution) const {
    const std::int64_t pitch = this->pitch(), groups = this->groups(), channels = this->channels();
    this->copy_affine(a_.scale, a_.shift);
    copy_channels(a_.sums.mean, T(0), 0, channels, 1, mean_);
    std::fill_n(sum_grad_, groups * pitch, T(0));
    std::fill_n(sum_centered_, groups * pitch, T(0));
    this->for_each_maps(execution, [&](const Maps& maps, std::int64_t lane) {
      T *gate = this->values_in(gate_, lane), *offset = this->values_in(offset_, lane);
      this->load_values(a_.gate, maps, gate);
      this->load_values(a_.grad_mean, maps, offset);
      for (std::int64_t c = 0; c < maps.channels; ++c) offset[c] /= this->positions();
      const auto affine = this->affine(maps, a_.activation);
      const std::int64_t place = maps.group * pitch + maps.channel;
      const SumVectors<T> sums{mean_ + maps.channel, sum_grad_ + place, sum_centered_ + place};
      this->for_each_part(maps, [&](const TilePart& part) {
        const auto x = read_patch<Major, T>(a_.x, part, Major::is_readable(a_.x), this->patch_in(x_, lane));
        const auto grad_out =
            read_patch<Major, T>(a_.grad_out, part, Major::is_readable(a_.grad_out), this->patch_in(grad_out_, lane));
        const auto grad = this->patch_to_write(a_.grad, part, this->patch_in(grad_, lane));
        apply_gate_backward<Major, T>(grad_out, gate, offset, x, affine, sums, {part.positions, part.channels}, grad);
        if (grad_ != nullptr) Major::store(grad.data, a_.grad, part);
      });
    });
    add_slices(sum_grad_, groups, pitch, channels, static_cast<T*>(a_.sums.grad.data));
    add_slices(sum_centered_, groups, pitch, channels, static_cast<T*>(a_.sums.grad_times_centered.data));
  }

 private:
  Arguments a_;
  T* gate_ = nullptr;
  T* offset_ = nullptr;
  T* mean_ = nullptr;
  T* sum_grad_ = nullptr;  ///< [group][channels], likewise sum_centered_
  T* sum_centered_ = nullptr;
  T* x_ = nullptr;
  T* grad_out_ = nullptr;
  T* grad_ = nullptr;
};

template <template <class, template <class> class> class Pass, class Arguments>
Plan<Arguments> plan_in_order(const Arguments& arguments, int threads) {
  const bool channel_major = is_channel_major(joined(arguments));
  if (arguments.x.dtype == DataType::float64) {
    if (channel_major) return plan_of_pass<Pass<double, ChannelMajor>>(arguments, threads);
    return plan_of_pass<Pass<double, PositionMajor>>(arguments, threads);
  }
  if (channel_major) return plan_of_pass<Pass<float, ChannelMajor>>(arguments, threads);
  return plan_of_pass<Pass<float, PositionMajor>>(arguments, threads);
}

Plan<SqueezeArguments> squeeze_plan(const SqueezeArguments& arguments, int threads) {
  return plan_in_order<Squeeze>(arguments, threads);
}

Plan<ExciteArguments> excite_plan(const ExciteArguments& arguments, int threads) {
  return plan_in_order<Excite>(arguments, threads);
}

Plan<ExciteBackwardArguments> excite_backward_plan(const ExciteBackwardArguments& arguments, int threads) {
  return plan_in_order<ExciteBackward>(arguments, threads);
}

Plan<SqueezeBackwardArguments> squeeze_backward_plan(const SqueezeBackwardArguments& arguments, int threads) {
  return plan_in_order<SqueezeBackward>(arguments, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(squeeze_plan);
HWY_EXPORT(excite_plan);
HWY_EXPORT(excite_backward_plan);
HWY_EXPORT(squeeze_backward_plan);

template <class Arguments>
std::string why_not(const Arguments& arguments) {
  return needs_device(Device::cpu, arguments.x.device);
}

}  // namespace

Implementation<SqueezeArguments> squeeze_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<SqueezeArguments>,
      .plan = [](const SqueezeArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(squeeze_plan)(arguments, threads); },
  };
}

Implementation<ExciteArguments> excite_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<ExciteArguments>,
      .plan = [](const ExciteArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(excite_plan)(arguments, threads); },
  };
}

Implementation<ExciteBackwardArguments> excite_backward_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<ExciteBackwardArguments>,
      .plan = [](const ExciteBackwardArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(excite_backward_plan)(arguments, threads); },
  };
}

Implementation<SqueezeBackwardArguments> squeeze_backward_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<SqueezeBackwardArguments>,
      .plan = [](const SqueezeBackwardArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(squeeze_backward_plan)(arguments, threads); },
  };
}

}  // namespace fusedsc
#endif
