/// The checks of a convolution's arguments, forward and backward. The depthwise and the pointwise family name their
/// arguments alike, hence templates.
#pragma once

#include "fusedsc/common/checks/checks.h"

namespace fusedsc {

/// Everything about a forward pass that can be judged without its memory.
template <class Arguments>
void check_forward(const Arguments& a, const Sizes& y_sizes) {
  check_readable({"x", a.x});
  check_readable({"weight", a.weight});
  check_dtype({"weight", a.weight}, a.x.dtype, "that of x");
  check_sizes({"y", a.y}, y_sizes, "the output's sizes");
  check_dtype({"y", a.y}, a.x.dtype, "that of x");
  if (a.y) check_writable({"y", a.y});
  for (const NamedTensor& tensor : {NamedTensor("weight", a.weight), NamedTensor("y", a.y)}) {
    check_device(tensor, a.x.device);
  }
  check_channels("bias", a.bias, y_sizes[1], a.x.dtype);
  check_prologue(a.prologue, a.x);
  check_epilogue(a.epilogue, a.y);
  check_statistics(a.statistics, a.y);
  check(!a.statistics || !a.epilogue,
        "epilogue: it is given together with statistics; leave one out: statistics are of the raw output");
}

template <class Arguments>
void check_forward_memory(const Arguments& a) {
  check_given({"x", a.x});
  check_given({"weight", a.weight});
  check_no_overlap({{"y", a.y}, {"statistics.mean", a.statistics.mean}, {"statistics.m2", a.statistics.m2}},
                   {{"x", a.x},
                    {"weight", a.weight},
                    {"bias", a.bias},
                    {"prologue.scale", a.prologue.scale},
                    {"prologue.shift", a.prologue.shift},
                    {"epilogue.scale", a.epilogue.scale},
                    {"epilogue.shift", a.epilogue.shift},
                    {"epilogue.residual", a.epilogue.residual}});
}

/// Everything about a backward pass that can be judged without its memory.
template <class Arguments>
void check_backward(const Arguments& a, const Sizes& y_sizes) {
  check_readable({"x", a.x});
  check_readable({"weight", a.weight});
  check_readable({"grad_y", a.grad_y});
  check_dtype({"weight", a.weight}, a.x.dtype, "that of x");
  check_dtype({"grad_y", a.grad_y}, a.x.dtype, "that of x");
  check_device({"weight", a.weight}, a.x.device);
  check_device({"grad_y", a.grad_y}, a.x.device);
  check_sizes({"grad_y", a.grad_y}, y_sizes, "the output's sizes");
  check_prologue(a.prologue, a.x);
  check_gradient_prologue(a.gradient_prologue, a.grad_y);
  check_gradient_sums(a.sums, a.x);
  check(!a.sums || a.grad_x, "sums: they are given without grad_x, whose sums they are; pass grad_x too");
  check(!a.sums || a.prologue, "sums: they are given without a prologue, whose BatchNorm they are for; pass it too");
  check(!a.sums || !a.grad_add, "grad_add: it is given together with sums; leave one out");
  check(!a.grad_add || a.grad_x, "grad_add: it is given without grad_x, to which it is added; pass grad_x too");
  const auto check_like = [&](const NamedTensor& tensor, const Sizes& sizes, const char* whose) {
    if (!tensor.view) return;
    check_readable(tensor);
    check_sizes(tensor, sizes, whose);
    check_dtype(tensor, a.x.dtype, "that of x");
    check_device(tensor, a.x.device);
  };
  check_like({"grad_add", a.grad_add}, a.x.sizes, "those of x");
  check_like({"grad_x", a.grad_x}, a.x.sizes, "those of x");
  check_like({"grad_weight", a.grad_weight}, a.weight.sizes, "those of weight");
  if (a.grad_x) check_writable({"grad_x", a.grad_x});
  if (a.grad_weight) check_writable({"grad_weight", a.grad_weight});
  check_channels("grad_bias", a.grad_bias, y_sizes[1], a.x.dtype);
}

template <class Arguments>
void check_backward_memory(const Arguments& a) {
  check_given({"x", a.x});
  check_given({"weight", a.weight});
  check_given({"grad_y", a.grad_y});
  check_no_overlap({{"grad_x", a.grad_x},
                    {"grad_weight", a.grad_weight},
                    {"grad_bias", a.grad_bias},
                    {"sums.grad", a.sums.grad},
                    {"sums.grad_times_centered", a.sums.grad_times_centered}},
                   {{"x", a.x},
                    {"weight", a.weight},
                    {"prologue.scale", a.prologue.scale},
                    {"prologue.shift", a.prologue.shift},
                    {"grad_y", a.grad_y},
                    {"gradient_prologue.grad_scale", a.gradient_prologue.grad_scale},
                    {"gradient_prologue.output_scale", a.gradient_prologue.output_scale},
                    {"gradient_prologue.offset", a.gradient_prologue.offset},
                    {"gradient_prologue.output", a.gradient_prologue.output},
                    {"sums.mean", a.sums.mean},
                    {"grad_add", a.grad_add}});
}

}  // namespace fusedsc
