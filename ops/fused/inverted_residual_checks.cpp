#include "fusedsc/fused/inverted_residual_checks.h"

#include <string>

#include "fusedsc/common/checks.h"
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

/// In eval mode it can do without.
bool keeps_raw(const InvertedResidualArguments& block) { return block.training || block.e || block.d || block.p; }

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
    if (keeps_raw(block)) check_tensor({"e", block.e}, sizes.e, dtype, "the expansion's output sizes");
  }
  check_batch_norm("dw_bn", block.dw_bn, sizes.d[1], vectors);
  check_batch_norm("project_bn", block.project_bn, sizes.p[1], vectors);
  if (keeps_raw(block)) {
    check_tensor({"d", block.d}, sizes.d, dtype, "the depthwise output's sizes");
    check_tensor({"p", block.p}, sizes.p, dtype, "the output's sizes");
  }
  check(!block.residual || sizes.p == block.x.sizes, "residual: x is ", printed(block.x.sizes), ", the result ",
        printed(sizes.p), "; adding them needs equal sizes: as many output channels as input channels, and stride 1");
  return sizes;
}

}  // namespace

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

void check_memory(const InvertedResidualArguments& block) {
  check_given({"x", block.x});
  check_given({"dw_weight", block.dw_weight});
  check_given({"project_weight", block.project_weight});
  if (keeps_raw(block)) {
    if (block.expand_weight) check_given({"e", block.e});
    check_given({"d", block.d});
    check_given({"p", block.p});
  }
  check_given({"y", block.y});
  // In eval mode the statistics are read: they may be the same memory as other inputs.
  const auto written = [&](const ChannelVector& statistics) {
    return ConstChannelVector(block.training ? statistics : ChannelVector());
  };
  check_no_overlap({{"e", block.e},
                    {"d", block.d},
                    {"p", block.p},
                    {"y", block.y},
                    {"expand_bn.mean", written(block.expand_bn.mean)},
                    {"expand_bn.invstd", written(block.expand_bn.invstd)},
                    {"dw_bn.mean", written(block.dw_bn.mean)},
                    {"dw_bn.invstd", written(block.dw_bn.invstd)},
                    {"project_bn.mean", written(block.project_bn.mean)},
                    {"project_bn.invstd", written(block.project_bn.invstd)}},
                   {{"x", block.x},
                    {"expand_weight", block.expand_weight},
                    {"dw_weight", block.dw_weight},
                    {"project_weight", block.project_weight}});
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

}  // namespace fusedsc
