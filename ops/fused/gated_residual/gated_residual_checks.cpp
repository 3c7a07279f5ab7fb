#include "fusedsc/fused/gated_residual/gated_residual_checks.h"

#include <string>

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"

namespace fusedsc {
namespace {

/// The sizes of everything in the block.
struct BlockSizes {
  Sizes e, d, p;

  explicit BlockSizes(const InvertedResidualArguments& block) {
    e = block.expand_weight ? pointwise_output_sizes(block.x.sizes, block.expand_weight.sizes, 1) : block.x.sizes;
    d = depthwise_output_sizes(e, block.dw_weight.sizes, block.window);
    p = pointwise_output_sizes(d, block.project_weight.sizes, 1);
  }
};

void check_weight(const NamedTensor& weight, DataType dtype) {
  check_readable(weight);
  check_dtype(weight, dtype, "that of x");
}

void check_tensor(const NamedTensor& tensor, const Sizes& sizes, DataType dtype, const char* whose) {
  check_sizes(tensor, sizes, whose);
  check_dtype(tensor, dtype, "that of x");
  check_writable(tensor);
}

void check_batch_norm(const std::string& name, const BatchNormParameters& bn, std::int64_t channels, DataType dtype) {
  check_channels((name + ".weight").c_str(), bn.weight, channels, dtype);
  check_channels((name + ".bias").c_str(), bn.bias, channels, dtype);
  check_channels_given((name + ".mean").c_str(), bn.mean, channels, dtype);
  check_channels_given((name + ".invstd").c_str(), bn.invstd, channels, dtype);
  check_channels((name + ".variance").c_str(), bn.variance, channels, dtype);
  check_channels((name + ".scale").c_str(), bn.scale, channels, dtype);
  check_channels((name + ".shift").c_str(), bn.shift, channels, dtype);
  check(static_cast<bool>(bn.scale) == static_cast<bool>(bn.shift), name,
        ".scale and .shift: only one is given; give both or neither");
  check(bn.eps >= 0, name, ".eps: it is ", bn.eps, "; it must not be negative");
}

void check_gradients(const std::string& name, const BatchNormGradients& bn, std::int64_t channels, DataType dtype) {
  check_channels((name + ".weight").c_str(), bn.weight, channels, dtype);
  check_channels((name + ".bias").c_str(), bn.bias, channels, dtype);
}

/// Everything but y, which backward does not look at.
BlockSizes check_block(const InvertedResidualArguments& block) {
  const DataType dtype = block.x.dtype, vectors = accumulation_type(dtype);
  check_readable({"x", block.x});
  if (block.expand_weight) check_weight({"expand_weight", block.expand_weight}, dtype);
  check_weight({"dw_weight", block.dw_weight}, dtype);
  check_weight({"project_weight", block.project_weight}, dtype);
  const BlockSizes sizes(block);
  check(sizes.d[1] == sizes.e[1], "dw_weight: it makes ", sizes.d[1], " channels of ", sizes.e[1],
        "; the channel multiplier of an inverted residual is 1");
  if (block.expand_weight) {
    check_batch_norm("expand_bn", block.expand_bn, sizes.e[1], vectors);
    check_tensor({"e", block.e}, sizes.e, dtype, "the expansion's output sizes");
  }
  check_batch_norm("dw_bn", block.dw_bn, sizes.d[1], vectors);
  check_batch_norm("project_bn", block.project_bn, sizes.p[1], vectors);
  check_tensor({"d", block.d}, sizes.d, dtype, "the depthwise output's sizes");
  check_tensor({"p", block.p}, sizes.p, dtype, "the output's sizes");
  check(!block.residual || sizes.p == block.x.sizes, "residual: x is ", printed(block.x.sizes), ", the result ",
        printed(sizes.p), "; adding them needs equal sizes: as many output channels as input channels, and stride 1");
  return sizes;
}

void check_problem(const InvertedResidualArguments& block) {
  const BlockSizes sizes = check_block(block);
  check_tensor({"y", block.y}, sizes.p, block.x.dtype, "the output's sizes");
}

void check_problem(const InvertedResidualBackwardArguments& gradients) {
  const InvertedResidualArguments& block = gradients.forward;
  const BlockSizes sizes = check_block(block);
  const DataType dtype = block.x.dtype, vectors = accumulation_type(dtype);
  check_readable({"grad_y", gradients.grad_y});
  check_sizes({"grad_y", gradients.grad_y}, sizes.p, "the output's sizes");
  check_dtype({"grad_y", gradients.grad_y}, dtype, "that of x");
  const auto check_optional = [&](const NamedTensor& tensor, const Sizes& expected, const char* whose) {
    if (tensor.view) check_tensor(tensor, expected, dtype, whose);
  };
  check_optional({"grad_d", gradients.grad_d}, sizes.d, "the depthwise output's sizes");
  check_optional({"grad_e", gradients.grad_e}, sizes.e, "the expansion's output sizes");
  check_optional({"grad_x", gradients.grad_x}, block.x.sizes, "those of x");
  check_optional({"grad_expand_weight", gradients.grad_expand_weight}, block.expand_weight.sizes,
                 "those of expand_weight");
  check_optional({"grad_dw_weight", gradients.grad_dw_weight}, block.dw_weight.sizes, "those of dw_weight");
  check_optional({"grad_project_weight", gradients.grad_project_weight}, block.project_weight.sizes,
                 "those of project_weight");
  if (block.expand_weight) check_gradients("grad_expand_bn", gradients.grad_expand_bn, sizes.e[1], vectors);
  check_gradients("grad_dw_bn", gradients.grad_dw_bn, sizes.d[1], vectors);
  check_gradients("grad_project_bn", gradients.grad_project_bn, sizes.p[1], vectors);
}

void check_memory(const InvertedResidualBackwardArguments& gradients) {
  const InvertedResidualArguments& block = gradients.forward;
  check_given({"x", block.x});
  if (block.expand_weight) check_given({"e", block.e});
  check_given({"dw_weight", block.dw_weight});
  check_given({"project_weight", block.project_weight});
  check_given({"d", block.d});
  check_given({"p", block.p});
  check_given({"grad_y", gradients.grad_y});
  check_no_overlap({{"grad_d", gradients.grad_d},
                    {"grad_e", gradients.grad_e},
                    {"grad_x", gradients.grad_x},
                    {"grad_expand_weight", gradients.grad_expand_weight},
                    {"grad_dw_weight", gradients.grad_dw_weight},
                    {"grad_project_weight", gradients.grad_project_weight}},
                   {{"x", block.x},
                    {"expand_weight", block.expand_weight},
                    {"dw_weight", block.dw_weight},
                    {"project_weight", block.project_weight},
                    {"e", block.e},
                    {"d", block.d},
                    {"p", block.p},
                    {"grad_y", gradients.grad_y}});
}

/// Of forward's tensors besides those of the gate.
void check_ungated(InvertedResidualArguments block) {
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

void check_gated_gradients(const GatedResidualBackwardArguments& arguments) {
  check_problem(arguments.block);
  check_small({"gate", arguments.gate}, arguments.block.forward.d);
}

}  // namespace

void check_features_problem(const GatedResidualArguments& arguments) {
  check_ungated(arguments.block);
  check_small({"mean", arguments.mean}, arguments.block.d);
  check_writable({"mean", arguments.mean});
}

void check_projection_problem(const GatedResidualArguments& arguments) {
  check_ungated(arguments.block);
  check_small({"gate", arguments.gate}, arguments.block.d);
  check_like_d({"z", arguments.z}, arguments.block.d);
  check_writable({"z", arguments.z});
}

void check_projection_problem(const GatedResidualBackwardArguments& arguments) {
  check_gated_gradients(arguments);
  check_like_d({"z", arguments.z}, arguments.block.forward.d);
  if (!arguments.grad_gate) return;
  check_small({"grad_gate", arguments.grad_gate}, arguments.block.forward.d);
  check_writable({"grad_gate", arguments.grad_gate});
}

void check_features_problem(const GatedResidualBackwardArguments& arguments) {
  check_gated_gradients(arguments);
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
