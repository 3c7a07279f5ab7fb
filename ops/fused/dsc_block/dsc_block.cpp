#include "fusedsc/fused/dsc_block.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/common/clear.h"
#include "fusedsc/forward/sliding_channel.h"
#include "fusedsc/fused/dsc_block/dsc_block_composed.h"
#include "fusedsc/fused/dsc_block/dsc_block_cpu.h"
#include "fusedsc/fused/dsc_block/dsc_block_parts.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper.h"
#include "fusedsc/fused/members.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {
namespace {

const tuning::Ranked<DscBlockArguments> kForwardKernels[] = {
#ifdef FUSEDSC_HOPPER
    {.kernel = dsc_block_hopper_narrow(),
     .suits = suits_dsc_block_hopper_narrow,
     .config = dsc_block_hopper_narrow_prior},
    {.kernel = dsc_block_hopper(), .config = dsc_block_hopper_prior, .suiting_config = dsc_block_hopper_suiting},
#endif
    {.kernel = tuning::kernel_of<dsc_block_composed>(), .suits = suits_dsc_block_composed},
    {.kernel = dsc_block_cpu(), .config = dsc_block_cpu_prior},
};
const tuning::Ranked<DscBlockBackwardArguments> kBackwardKernels[] = {
    {.kernel = tuning::kernel_of<dsc_block_backward_composed>(), .suits = suits_dsc_block_backward_composed},
    {.kernel = dsc_block_backward_cpu(), .config = dsc_block_backward_cpu_prior},
};
using ForwardRole = tuning::RankedRole<kForwardKernels>;
using BackwardRole = tuning::RankedRole<kBackwardKernels>;

constexpr auto kForwardRole = ForwardRole::named("dsc_block.forward");
constexpr auto kBackwardRole = BackwardRole::named("dsc_block.backward");
const tuning::RoleRegistration kRegistered[] = {{kForwardRole.name, ForwardRole::names},
                                                {kBackwardRole.name, BackwardRole::names}};

/// What forward and backward name alike; returns the sizes of d.
template <class Block>
Sizes check_convolutions(const Block& block) {
  const DataType dtype = block.x.dtype;
  check_readable({"x", block.x});
  check_readable({"dw_weight", block.dw_weight});
  check_readable({"pw_weight", block.pw_weight});
  check_dtype({"dw_weight", block.dw_weight}, dtype, "that of x");
  check_dtype({"pw_weight", block.pw_weight}, dtype, "that of x");
  const Sizes middle = depthwise_output_sizes(block.x.sizes, block.dw_weight.sizes, block.window);
  check_channels("dw_bias", block.dw_bias, middle[1], dtype);
  check_channels("bn_weight", block.bn_weight, middle[1], accumulation_type(dtype));
  check_channels("bn_bias", block.bn_bias, middle[1], accumulation_type(dtype));
  check_channels_given("mean", block.mean, middle[1], accumulation_type(dtype));
  check_channels_given("invstd", block.invstd, middle[1], accumulation_type(dtype));
  check_channels("scale", block.scale, middle[1], accumulation_type(dtype));
  check_channels("shift", block.shift, middle[1], accumulation_type(dtype));
  check(static_cast<bool>(block.scale) == static_cast<bool>(block.shift),
        "scale and shift: only one is given; give both or neither");
  return middle;
}

/// Of y, of forward and of backward.
template <class Block>
Sizes output_sizes(const Block& block, const Sizes& middle) {
  return block.overlap ? sliding_channel_output_sizes(middle, block.pw_weight.sizes, block.groups, *block.overlap)
                       : pointwise_output_sizes(middle, block.pw_weight.sizes, block.groups);
}

void check_like(const NamedTensor& tensor, const Sizes& sizes, DataType dtype, const char* whose) {
  if (!tensor.view) return;
  check_writable(tensor);
  check_sizes(tensor, sizes, whose);
  check_dtype(tensor, dtype, "that of x");
}

void check_problem(const DscBlockArguments& block) {
  const Sizes middle = check_convolutions(block);
  const DataType dtype = block.x.dtype;
  const Sizes y = output_sizes(block, middle);
  check_channels("pw_bias", block.pw_bias, y[1], dtype);
  check_channels("variance", block.variance, middle[1], accumulation_type(dtype));
  check(block.eps >= 0, "eps: it is ", block.eps, "; it must not be negative");
  check_epilogue(block.epilogue, block.y);
  check(!block.epilogue || !block.training, "epilogue: it is given in training; leave it out: it is for eval mode");
  check_sizes({"y", block.y}, y, "the output's sizes");
  check_like({"y", block.y}, y, dtype, "the output's sizes");
  check_like({"d", block.d}, middle, dtype, "the depthwise output's sizes");
}

void check_problem(const DscBlockBackwardArguments& block) {
  const Sizes middle = check_convolutions(block);
  const DataType dtype = block.x.dtype, sums = accumulation_type(dtype);
  const Sizes y = output_sizes(block, middle);
  check_readable({"grad_y", block.grad_y});
  check_sizes({"grad_y", block.grad_y}, y, "the output's sizes");
  check_dtype({"grad_y", block.grad_y}, dtype, "that of x");
  if (block.d) {
    check_readable({"d", block.d});
    check_sizes({"d", block.d}, middle, "the depthwise output's sizes");
    check_dtype({"d", block.d}, dtype, "that of x");
  }
  check_like({"grad_bn", block.grad_bn}, middle, dtype, "the depthwise output's sizes");
  check_like({"grad_x", block.grad_x}, block.x.sizes, dtype, "those of x");
  check_like({"grad_dw_weight", block.grad_dw_weight}, block.dw_weight.sizes, dtype, "those of dw_weight");
  check_like({"grad_pw_weight", block.grad_pw_weight}, block.pw_weight.sizes, dtype, "those of pw_weight");
  check_channels("grad_dw_bias", block.grad_dw_bias, middle[1], dtype);
  check_channels("grad_pw_bias", block.grad_pw_bias, y[1], dtype);
  check_channels("grad_bn_weight", block.grad_bn_weight, middle[1], sums);
  check_channels("grad_bn_bias", block.grad_bn_bias, middle[1], sums);
}

void check_memory(const DscBlockArguments& block) {
  check_given({"x", block.x});
  check_given({"dw_weight", block.dw_weight});
  check_given({"pw_weight", block.pw_weight});
  // In eval mode these are read: they may be the same memory as other inputs.
  const auto written = [&](const ChannelVector& vector) {
    return ConstChannelVector(block.training ? vector : ChannelVector());
  };
  check_no_overlap({{"y", block.y},
                    {"d", block.d},
                    {"mean", written(block.mean)},
                    {"invstd", written(block.invstd)},
                    {"variance", block.variance},
                    {"scale", written(block.scale)},
                    {"shift", written(block.shift)}},
                   {{"x", block.x},
                    {"dw_weight", block.dw_weight},
                    {"dw_bias", block.dw_bias},
                    {"pw_weight", block.pw_weight},
                    {"pw_bias", block.pw_bias},
                    {"bn_weight", block.bn_weight},
                    {"bn_bias", block.bn_bias},
                    {"epilogue.scale", block.epilogue.scale},
                    {"epilogue.shift", block.epilogue.shift},
                    {"epilogue.residual", block.epilogue.residual}});
}

void check_memory(const DscBlockBackwardArguments& block) {
  check_given({"x", block.x});
  check_given({"dw_weight", block.dw_weight});
  check_given({"pw_weight", block.pw_weight});
  check_given({"grad_y", block.grad_y});
  check_no_overlap({{"grad_bn", block.grad_bn},
                    {"grad_x", block.grad_x},
                    {"grad_dw_weight", block.grad_dw_weight},
                    {"grad_pw_weight", block.grad_pw_weight},
                    {"grad_dw_bias", block.grad_dw_bias},
                    {"grad_pw_bias", block.grad_pw_bias},
                    {"grad_bn_weight", block.grad_bn_weight},
                    {"grad_bn_bias", block.grad_bn_bias}},
                   {{"x", block.x},
                    {"dw_weight", block.dw_weight},
                    {"pw_weight", block.pw_weight},
                    {"bn_weight", block.bn_weight},
                    {"bn_bias", block.bn_bias},
                    {"mean", block.mean},
                    {"invstd", block.invstd},
                    {"scale", block.scale},
                    {"shift", block.shift},
                    {"d", block.d},
                    {"grad_y", block.grad_y}});
}

/// Statistics and gradients of nothing: a batch without images is legal.
void clear_results(const DscBlockArguments& block) {
  if (!block.training) return;
  clear_statistics(block.mean, block.variance, block.invstd, block.eps);
  if (block.scale) batch_norm_finalize(affine_of(normalisation_of(block), block.scale, block.shift), {});
}

void clear_results(const DscBlockBackwardArguments& block) {
  clear(block.grad_dw_weight);
  clear(block.grad_pw_weight);
  clear(block.grad_dw_bias);
  clear(block.grad_pw_bias);
  clear(block.grad_bn_weight);
  clear(block.grad_bn_bias);
}

bool is_empty(const DscBlockArguments& block) { return block.x.device == Device::cpu && block.y.elements() == 0; }

bool is_empty(const DscBlockBackwardArguments& block) {
  return block.x.device == Device::cpu && block.grad_y.elements() == 0;
}

constexpr Operator<DscBlockArguments> kForward{
    .name = "dsc_block",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .plan = [](const DscBlockArguments& block,
               int threads) { return tuning::plan_chosen(kForwardRole, block, threads); },
    .candidates = [](const DscBlockArguments& block,
                     int threads) { return tuning::candidates(kForwardRole, block, threads); },
};

constexpr Operator<DscBlockBackwardArguments> kBackward{
    .name = "dsc_block_backward",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .plan = [](const DscBlockBackwardArguments& block,
               int threads) { return tuning::plan_chosen(kBackwardRole, block, threads); },
    .candidates = [](const DscBlockBackwardArguments& block,
                     int threads) { return tuning::candidates(kBackwardRole, block, threads); },
};

}  // namespace

FUSEDSC_CHOOSING_OPERATOR(dsc_block, DscBlockArguments, kForward)
FUSEDSC_CHOOSING_OPERATOR(dsc_block_backward, DscBlockBackwardArguments, kBackward)

}  // namespace fusedsc
