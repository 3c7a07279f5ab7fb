#include "fusedsc/fused/conv_bn_act.h"

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_composed.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_gpu.h"
#include "fusedsc/fused/members.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"

namespace fusedsc {
namespace {

const tuning::Ranked<ConvBnActArguments> kForwardKernels[] = {
#ifdef FUSEDSC_GPU
    {.kernel = conv_bn_act_gpu(), .config = conv_bn_act_gpu_prior},
#endif
    {.kernel = tuning::kernel_of<conv_bn_act_composed>()},
};
const tuning::Ranked<ConvBnActBackwardArguments> kBackwardKernels[] = {
#ifdef FUSEDSC_GPU
    {.kernel = conv_bn_act_backward_gpu(), .config = conv_bn_act_backward_gpu_prior},
#endif
    {.kernel = tuning::kernel_of<conv_bn_act_backward_composed>()},
};
using ForwardRole = tuning::RankedRole<kForwardKernels>;
using BackwardRole = tuning::RankedRole<kBackwardKernels>;

constexpr auto kForwardRole = ForwardRole::named("conv_bn_act.forward");
constexpr auto kBackwardRole = BackwardRole::named("conv_bn_act.backward");
const tuning::RoleRegistration kRegistered[] = {{kForwardRole.name, ForwardRole::names},
                                                {kBackwardRole.name, BackwardRole::names}};

/// What forward and backward name alike; returns the output's sizes.
template <class Block>
Sizes check_convolution(const Block& block) {
  const DataType dtype = block.x.dtype, vectors = accumulation_type(dtype);
  check_readable({"x", block.x});
  check_readable({"weight", block.weight});
  check_dtype({"weight", block.weight}, dtype, "that of x");
  check_device({"weight", block.weight}, block.x.device);
  const Sizes y = conv_output_sizes(block.x.sizes, block.weight.sizes, block.window);
  check_channels("bn_weight", block.bn_weight, y[1], vectors);
  check_channels("bn_bias", block.bn_bias, y[1], vectors);
  check_channels_given("mean", block.mean, y[1], vectors);
  check_channels_given("invstd", block.invstd, y[1], vectors);
  return y;
}

void check_result(const NamedTensor& tensor, const Sizes& sizes, const ConstTensorView& x, const char* whose) {
  if (!tensor.view) return;
  check_writable(tensor);
  check_sizes(tensor, sizes, whose);
  check_dtype(tensor, x.dtype, "that of x");
  check_device(tensor, x.device);
}

void check_problem(const ConvBnActArguments& block) {
  const Sizes y = check_convolution(block);
  check_channels("variance", block.variance, y[1], accumulation_type(block.x.dtype));
  check_channels("scale", block.scale, y[1], accumulation_type(block.x.dtype));
  check_channels("shift", block.shift, y[1], accumulation_type(block.x.dtype));
  check(static_cast<bool>(block.scale) == static_cast<bool>(block.shift),
        "scale and shift: only one is given; give both or neither");
  check(!block.scale || !block.training, "scale: it is given in training; leave it out: it is for eval mode");
  check(block.eps >= 0, "eps: it is ", block.eps, "; it must not be negative");
  check_sizes({"y", block.y}, y, "the output's sizes");
  check_dtype({"y", block.y}, block.x.dtype, "that of x");
  if (!block.y) return;
  check_writable({"y", block.y});
  check_device({"y", block.y}, block.x.device);
}

void check_problem(const ConvBnActBackwardArguments& block) {
  const Sizes y = check_convolution(block);
  const DataType vectors = accumulation_type(block.x.dtype);
  check_readable({"grad_y", block.grad_y});
  check_sizes({"grad_y", block.grad_y}, y, "the output's sizes");
  check_dtype({"grad_y", block.grad_y}, block.x.dtype, "that of x");
  check_device({"grad_y", block.grad_y}, block.x.device);
  check_result({"grad_x", block.grad_x}, block.x.sizes, block.x, "those of x");
  check_result({"grad_weight", block.grad_weight}, block.weight.sizes, block.x, "those of weight");
  check_channels("grad_bn_weight", block.grad_bn_weight, y[1], vectors);
  check_channels("grad_bn_bias", block.grad_bn_bias, y[1], vectors);
}

void check_memory(const ConvBnActArguments& block) {
  check_given({"x", block.x});
  check_given({"weight", block.weight});
  check_given({"y", block.y});
  // In eval mode mean and invstd are read: they may be the same memory as other inputs.
  const ConstChannelVector mean = block.training ? block.mean : ChannelVector();
  const ConstChannelVector invstd = block.training ? block.invstd : ChannelVector();
  check_no_overlap({{"y", block.y}, {"mean", mean}, {"invstd", invstd}, {"variance", block.variance}},
                   {{"x", block.x},
                    {"weight", block.weight},
                    {"bn_weight", block.bn_weight},
                    {"bn_bias", block.bn_bias},
                    {"scale", block.scale},
                    {"shift", block.shift}});
}

void check_memory(const ConvBnActBackwardArguments& block) {
  check_given({"x", block.x});
  check_given({"weight", block.weight});
  check_given({"grad_y", block.grad_y});
  check_no_overlap({{"grad_x", block.grad_x},
                    {"grad_weight", block.grad_weight},
                    {"grad_bn_weight", block.grad_bn_weight},
                    {"grad_bn_bias", block.grad_bn_bias}},
                   {{"x", block.x},
                    {"weight", block.weight},
                    {"bn_weight", block.bn_weight},
                    {"bn_bias", block.bn_bias},
                    {"mean", block.mean},
                    {"invstd", block.invstd},
                    {"grad_y", block.grad_y}});
}

/// Statistics and gradients of nothing: a batch without images is legal.
void clear_results(const ConvBnActArguments& block) {
  if (block.training) clear_statistics(block.mean, block.variance, block.invstd, block.eps);
}

void clear_results(const ConvBnActBackwardArguments& block) {
  clear(block.grad_weight);
  clear(block.grad_bn_weight);
  clear(block.grad_bn_bias);
}

bool is_empty(const ConvBnActArguments& block) { return block.x.device == Device::cpu && block.y.elements() == 0; }

bool is_empty(const ConvBnActBackwardArguments& block) {
  return block.x.device == Device::cpu && block.grad_y.elements() == 0;
}

constexpr Operator<ConvBnActArguments> kForward{
    .name = "conv_bn_act",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .plan = [](const ConvBnActArguments& block,
               int threads) { return tuning::plan_chosen(kForwardRole, block, threads); },
    .candidates = [](const ConvBnActArguments& block,
                     int threads) { return tuning::candidates(kForwardRole, block, threads); },
};

constexpr Operator<ConvBnActBackwardArguments> kBackward{
    .name = "conv_bn_act_backward",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .plan = [](const ConvBnActBackwardArguments& block,
               int threads) { return tuning::plan_chosen(kBackwardRole, block, threads); },
    .candidates = [](const ConvBnActBackwardArguments& block,
                     int threads) { return tuning::candidates(kBackwardRole, block, threads); },
};

}  // namespace

Sizes conv_output_sizes(const Sizes& x, const Sizes& weight, const Window& window) {
  check(x[1] > 0, "x: it has ", x[1], " channels; a convolution needs at least 1");
  check(weight[0] > 0, "weight: it has ", weight[0], " output channels; it must have at least 1");
  check(weight[1] == x[1] && weight[2] == window.kernel[0] && weight[3] == window.kernel[1], "weight: its sizes are ",
        printed(weight), ", but must be ", printed({weight[0], x[1], window.kernel[0], window.kernel[1]}), ", for the ",
        x[1], " channels of x");
  return {x[0], weight[0], window.output_height(x[2]), window.output_width(x[3])};
}

FUSEDSC_CHOOSING_OPERATOR(conv_bn_act, ConvBnActArguments, kForward)
FUSEDSC_CHOOSING_OPERATOR(conv_bn_act_backward, ConvBnActBackwardArguments, kBackward)

}  // namespace fusedsc
