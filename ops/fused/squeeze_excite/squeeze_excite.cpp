#include "fusedsc/fused/squeeze_excite.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/common/clear.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_cpu.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_gpu.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<SqueezeArguments>> squeeze_implementations() {
  static const Implementation<SqueezeArguments> list[] = {
#ifdef FUSEDSC_GPU
      squeeze_gpu(),
#endif
      squeeze_cpu(),
  };
  return list;
}

std::span<const Implementation<ExciteArguments>> excite_implementations() {
  static const Implementation<ExciteArguments> list[] = {
#ifdef FUSEDSC_GPU
      excite_gpu(),
#endif
      excite_cpu(),
  };
  return list;
}

std::span<const Implementation<ExciteBackwardArguments>> excite_backward_implementations() {
  static const Implementation<ExciteBackwardArguments> list[] = {
#ifdef FUSEDSC_GPU
      excite_backward_gpu(),
#endif
      excite_backward_cpu(),
  };
  return list;
}

std::span<const Implementation<SqueezeBackwardArguments>> squeeze_backward_implementations() {
  static const Implementation<SqueezeBackwardArguments> list[] = {
#ifdef FUSEDSC_GPU
      squeeze_backward_gpu(),
#endif
      squeeze_backward_cpu(),
  };
  return list;
}

/// x and its affine map.
template <class Arguments>
void check_activated(const Arguments& a) {
  check_readable({"x", a.x});
  check(a.x.sizes[2] * a.x.sizes[3] > 0, "x: its sizes are ", printed(a.x.sizes),
        "; its maps must have at least one position");
  check_channels_given("scale", a.scale, a.x.sizes[1], accumulation_type(a.x.dtype));
  check_channels_given("shift", a.shift, a.x.sizes[1], accumulation_type(a.x.dtype));
}

void check_like_x(const NamedTensor& tensor, const ConstTensorView& x) {
  check_readable(tensor);
  check_sizes(tensor, x.sizes, "those of x");
  check_dtype(tensor, x.dtype, "that of x");
  check_device(tensor, x.device);
}

/// Of averages, gates and their gradients.
void check_per_map(const NamedTensor& tensor, const ConstTensorView& x) {
  check_readable(tensor);
  check_sizes(tensor, {x.sizes[0], x.sizes[1], 1, 1}, "one value for each of x's maps");
  check_dtype(tensor, x.dtype, "that of x");
  check_device(tensor, x.device);
}

void check_problem(const SqueezeArguments& a) {
  check_activated(a);
  check_per_map({"mean", a.mean}, a.x);
  check_writable({"mean", a.mean});
}

void check_problem(const ExciteArguments& a) {
  check_activated(a);
  check_per_map({"gate", a.gate}, a.x);
  check_like_x({"out", a.out}, a.x);
  check_writable({"out", a.out});
}

void check_problem(const ExciteBackwardArguments& a) {
  check_activated(a);
  check_like_x({"grad_out", a.grad_out}, a.x);
  check_per_map({"grad_gate", a.grad_gate}, a.x);
  check_writable({"grad_gate", a.grad_gate});
}

void check_problem(const SqueezeBackwardArguments& a) {
  check_activated(a);
  check_like_x({"grad_out", a.grad_out}, a.x);
  check_per_map({"gate", a.gate}, a.x);
  check_per_map({"grad_mean", a.grad_mean}, a.x);
  check_like_x({"grad", a.grad}, a.x);
  check_writable({"grad", a.grad});
  check(static_cast<bool>(a.sums), "sums: they are empty; pass vectors for the two sums");
  check_gradient_sums(a.sums, a.x);
}

void check_memory(const SqueezeArguments& a) {
  check_given({"x", a.x});
  check_given({"mean", a.mean});
  check_no_overlap({{"mean", a.mean}}, {{"x", a.x}, {"scale", a.scale}, {"shift", a.shift}});
}

void check_memory(const ExciteArguments& a) {
  check_given({"x", a.x});
  check_given({"gate", a.gate});
  check_given({"out", a.out});
  check_no_overlap({{"out", a.out}}, {{"x", a.x}, {"gate", a.gate}, {"scale", a.scale}, {"shift", a.shift}});
}

void check_memory(const ExciteBackwardArguments& a) {
  check_given({"x", a.x});
  check_given({"grad_out", a.grad_out});
  check_given({"grad_gate", a.grad_gate});
  check_no_overlap({{"grad_gate", a.grad_gate}},
                   {{"x", a.x}, {"grad_out", a.grad_out}, {"scale", a.scale}, {"shift", a.shift}});
}

void check_memory(const SqueezeBackwardArguments& a) {
  check_given({"x", a.x});
  check_given({"grad_out", a.grad_out});
  check_given({"gate", a.gate});
  check_given({"grad_mean", a.grad_mean});
  check_given({"grad", a.grad});
  check_no_overlap({{"grad", a.grad}},
                   {{"x", a.x}, {"gate", a.gate}, {"grad_mean", a.grad_mean}, {"scale", a.scale}, {"shift", a.shift}});
  // Each element is read before it is written in its place.
  const bool in_place = a.grad.data == a.grad_out.data && a.grad.strides == a.grad_out.strides;
  if (!in_place) check_no_overlap({{"grad", a.grad}}, {{"grad_out", a.grad_out}});
}

template <class Arguments>
bool is_empty(const Arguments& a) {
  return a.x.device == Device::cpu && a.x.elements() == 0;
}

/// There are no maps then, but there may be channels.
template <class Arguments>
void clear_results(const Arguments&) {}

void clear_gradient_sums(const SqueezeBackwardArguments& a) {
  clear(a.sums.grad);
  clear(a.sums.grad_times_centered);
}

constexpr Operator<SqueezeArguments> kSqueeze{
    .name = "squeeze",
    .implementations = squeeze_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

constexpr Operator<ExciteArguments> kExcite{
    .name = "excite",
    .implementations = excite_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

constexpr Operator<ExciteBackwardArguments> kExciteBackward{
    .name = "excite_backward",
    .implementations = excite_backward_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

constexpr Operator<SqueezeBackwardArguments> kSqueezeBackward{
    .name = "squeeze_backward",
    .implementations = squeeze_backward_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_gradient_sums,
    .finish = normalise_sums_of<SqueezeBackwardArguments>,
};

}  // namespace

FUSEDSC_OPERATOR(squeeze, SqueezeArguments, kSqueeze)
FUSEDSC_OPERATOR(excite, ExciteArguments, kExcite)
FUSEDSC_OPERATOR(excite_backward, ExciteBackwardArguments, kExciteBackward)
FUSEDSC_OPERATOR(squeeze_backward, SqueezeBackwardArguments, kSqueezeBackward)

}  // namespace fusedsc
