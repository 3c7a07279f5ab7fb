#include "fusedsc/fused/gated_residual_checks.h"

#include "fusedsc/common/checks.h"
#include "fusedsc/fused/inverted_residual_checks.h"

namespace fusedsc {
namespace {

/// Of the tensors of an inverted residual without a gate.
void check_block(InvertedResidualArguments block) {
  if (!block.training && !block.p) block.p = block.y;  // has the sizes of what is not wanted
  check_problem(block);
}

/// One value per image and channel.
void check_small(const NamedTensor& tensor, const ConstTensorView& d) {
  check_readable(tensor);
  check_sizes(tensor, {d.sizes[0], d.sizes[1], 1, 1}, "one value per image and channel of the depthwise output");
  check_dtype(tensor, d.dtype, "that of x");
}

void check_like_d(const NamedTensor& tensor, const ConstTensorView& d) {
  check_readable(tensor);
  check_sizes(tensor, d.sizes, "the depthwise output's sizes");
  check_dtype(tensor, d.dtype, "that of x");
}

void check_gradients(const GatedResidualBackwardArguments& arguments) {
  check_problem(arguments.block);
  check_small({"gate", arguments.gate}, arguments.block.forward.d);
}

}  // namespace

void check_features_problem(const GatedResidualArguments& arguments) {
  check_block(arguments.block);
  check_small({"mean", arguments.mean}, arguments.block.d);
  check_writable({"mean", arguments.mean});
}

void check_projection_problem(const GatedResidualArguments& arguments) {
  check_block(arguments.block);
  check_small({"gate", arguments.gate}, arguments.block.d);
  check_like_d({"z", arguments.z}, arguments.block.d);
  check_writable({"z", arguments.z});
}

void check_projection_problem(const GatedResidualBackwardArguments& arguments) {
  check_gradients(arguments);
  check_like_d({"z", arguments.z}, arguments.block.forward.d);
  if (!arguments.grad_gate) return;
  check_small({"grad_gate", arguments.grad_gate}, arguments.block.forward.d);
  check_writable({"grad_gate", arguments.grad_gate});
}

void check_features_problem(const GatedResidualBackwardArguments& arguments) {
  check_gradients(arguments);
  check_small({"grad_mean", arguments.grad_mean}, arguments.block.forward.d);
}

void check_features_memory(const GatedResidualArguments& arguments) {
  const InvertedResidualArguments& block = arguments.block;
  check_given({"x", block.x});
  check_given({"dw_weight", block.dw_weight});
  if (block.expand_weight) check_given({"e", block.e});
  check_given({"d", block.d});
  check_given({"mean", arguments.mean});
  check_no_overlap({{"e", block.e}, {"d", block.d}, {"mean", arguments.mean}},
                   {{"x", block.x}, {"expand_weight", block.expand_weight}, {"dw_weight", block.dw_weight}});
}

void check_projection_memory(const GatedResidualArguments& arguments) {
  const InvertedResidualArguments& block = arguments.block;
  check_given({"x", block.x});
  check_given({"project_weight", block.project_weight});
  check_given({"d", block.d});
  check_given({"gate", arguments.gate});
  check_given({"z", arguments.z});
  if (block.training) check_given({"p", block.p});
  check_given({"y", block.y});
  check_no_overlap(
      {{"z", arguments.z}, {"p", block.p}, {"y", block.y}},
      {{"x", block.x}, {"project_weight", block.project_weight}, {"d", block.d}, {"gate", arguments.gate}});
}

void check_projection_memory(const GatedResidualBackwardArguments& arguments) {
  const InvertedResidualBackwardArguments& block = arguments.block;
  check_memory(block);
  check_given({"gate", arguments.gate});
  check_given({"z", arguments.z});
  check_no_overlap({{"grad_d", block.grad_d},
                    {"grad_gate", arguments.grad_gate},
                    {"grad_project_weight", block.grad_project_weight}},
                   {{"gate", arguments.gate}, {"z", arguments.z}, {"d", block.forward.d}});
}

void check_features_memory(const GatedResidualBackwardArguments& arguments) {
  const InvertedResidualBackwardArguments& block = arguments.block;
  check_memory(block);
  check_given({"grad_d", block.grad_d});
  check_given({"gate", arguments.gate});
  check_given({"grad_mean", arguments.grad_mean});
  check_no_overlap({{"grad_d", block.grad_d}, {"grad_e", block.grad_e}, {"grad_x", block.grad_x}},
                   {{"gate", arguments.gate}, {"grad_mean", arguments.grad_mean}});
}

}  // namespace fusedsc
