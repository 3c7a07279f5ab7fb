#include "fusedsc/fused/squeeze_excite/squeeze_excite_cpu.h"

#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/fused/squeeze_excite/squeeze_excite_cpu.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/common/cpu/positions.h"
#include "fusedsc/common/cpu/slice_sums.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_maps-inl.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_patches-inl.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_sums.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// The arguments with the rows of their maps joined, where the strides allow it.
MapSums joined(MapSums sums) {
  join_all_rows(sums.x, sums.factors);
  return sums;
}
MapSums joined(const SqueezeArguments& arguments) { return joined(MapSums(arguments)); }
MapSums joined(const ExciteBackwardArguments& arguments) { return joined(MapSums(arguments)); }
ExciteArguments joined(ExciteArguments arguments) {
  join_all_rows(arguments.x, arguments.out);
  return arguments;
}
SqueezeBackwardArguments joined(SqueezeBackwardArguments arguments) {
  join_all_rows(arguments.x, arguments.grad_out, arguments.grad);
  return arguments;
}

bool is_channel_major(const MapSums& a) { return all_contiguous(a.x, a.factors); }
bool is_channel_major(const ExciteArguments& a) { return all_contiguous(a.x, a.out); }
bool is_channel_major(const SqueezeBackwardArguments& a) { return all_contiguous(a.x, a.grad_out, a.grad); }

template <class T, template <class> class Order>
class SumMaps : public MapsPass<T, Order> {
 public:
  using Major = Order<T>;

  template <class Arguments>
  SumMaps(const Arguments& arguments, int threads, void* workspace)
      : MapsPass<T, Order>(joined(arguments).x, 2, threads, workspace), a_(joined(arguments)) {
    sums_ = this->take_values(this->arena());
    if (!Major::is_readable(a_.x)) x_ = this->take_patches(this->arena());
    if (a_.factors && !Major::is_readable(a_.factors)) factors_ = this->take_patches(this->arena());
  }

  void run(const Execution& execution) const {
    this->copy_affine(a_.scale, a_.shift);
    this->for_each_maps(execution, [&](const Maps& maps, std::int64_t lane) {
      T* sums = this->values_in(sums_, lane);
      std::fill_n(sums, this->values_size(), T(0));
      const auto affine = this->affine(maps, a_.activation);
      this->for_each_part(maps, [&](const TilePart& part) {
        const auto x = read_patch<Major, T>(a_.x, part, Major::is_readable(a_.x), this->patch_in(x_, lane));
        Patch<const T> factors;
        if (a_.factors) {
          factors =
              read_patch<Major, T>(a_.factors, part, Major::is_readable(a_.factors), this->patch_in(factors_, lane));
        }
        add_activated<Major, T>(x, affine, factors, {part.positions, part.channels}, sums);
      });
      this->store_values(sums, maps, static_cast<T>(a_.weight), a_.sums);
    });
  }

 private:
  MapSums a_;
  T* sums_ = nullptr;
  T* x_ = nullptr;
  T* factors_ = nullptr;
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
    const T weight = static_cast<T>(1 / static_cast<double>(this->positions()));  // of a position in an average
    const std::int64_t pitch = this->pitch(), groups = this->groups(), channels = this->channels();
    this->copy_affine(a_.scale, a_.shift);
    copy_channels(a_.sums.mean, T(0), 0, channels, 1, mean_);
    std::fill_n(sum_grad_, groups * pitch, T(0));
    std::fill_n(sum_centered_, groups * pitch, T(0));
    this->for_each_maps(execution, [&](const Maps& maps, std::int64_t lane) {
      T *gate = this->values_in(gate_, lane), *offset = this->values_in(offset_, lane);
      this->load_values(a_.gate, maps, gate);
      this->load_values(a_.grad_mean, maps, offset);
      for (std::int64_t c = 0; c < maps.channels; ++c) offset[c] *= weight;
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
  return plan_in_order<SumMaps>(arguments, threads);
}

Plan<ExciteArguments> excite_plan(const ExciteArguments& arguments, int threads) {
  return plan_in_order<Excite>(arguments, threads);
}

Plan<ExciteBackwardArguments> excite_backward_plan(const ExciteBackwardArguments& arguments, int threads) {
  return plan_in_order<SumMaps>(arguments, threads);
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
      .plan = [](const SqueezeArguments& a, int threads) { return HWY_DYNAMIC_DISPATCH(squeeze_plan)(a, threads); },
  };
}

Implementation<ExciteArguments> excite_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<ExciteArguments>,
      .plan = [](const ExciteArguments& a, int threads) { return HWY_DYNAMIC_DISPATCH(excite_plan)(a, threads); },
  };
}

Implementation<ExciteBackwardArguments> excite_backward_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<ExciteBackwardArguments>,
      .plan = [](const ExciteBackwardArguments& a,
                 int threads) { return HWY_DYNAMIC_DISPATCH(excite_backward_plan)(a, threads); },
  };
}

Implementation<SqueezeBackwardArguments> squeeze_backward_cpu() {
  return {
      .name = "cpu",
      .why_not = why_not<SqueezeBackwardArguments>,
      .plan = [](const SqueezeBackwardArguments& a,
                 int threads) { return HWY_DYNAMIC_DISPATCH(squeeze_backward_plan)(a, threads); },
  };
}

}  // namespace fusedsc
#endif
