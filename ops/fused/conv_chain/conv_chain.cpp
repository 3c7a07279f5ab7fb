#include "fusedsc/fused/conv_chain.h"

#include "fusedsc/fused/conv_chain/conv_chain_checks.h"
#include "fusedsc/fused/conv_chain/conv_chain_composed.h"
#include "fusedsc/fused/conv_chain/conv_chain_inference.h"
#include "fusedsc/fused/members.h"
#include "fusedsc/fused/normalised_tensor.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"

namespace fusedsc {
namespace {

const tuning::Ranked<ConvChainArguments> kForwardKernels[] = {{.kernel = tuning::kernel_of<conv_chain_inference>()},
                                                              {.kernel = tuning::kernel_of<conv_chain_composed>()}};
const tuning::Ranked<ConvChainBackwardArguments> kBackwardKernels[] = {
    {.kernel = tuning::kernel_of<conv_chain_backward_composed>()}};
using ForwardRole = tuning::RankedRole<kForwardKernels>;
using BackwardRole = tuning::RankedRole<kBackwardKernels>;

constexpr auto kForwardRole = ForwardRole::named("conv_chain.forward");
constexpr auto kBackwardRole = BackwardRole::named("conv_chain.backward");
const tuning::RoleRegistration kRegistered[] = {{kForwardRole.name, ForwardRole::names},
                                                {kBackwardRole.name, BackwardRole::names}};

/// What a batch without images leaves behind.
void clear_results(const ConvChainArguments& chain) {
  for (const ConvStage& stage : chain.stages) {
    if (chain.training && stage.bn) clear(*stage.bn);
  }
}

void clear_results(const ConvChainBackwardArguments& wanted) {
  clear(wanted.grad_x);
  for (const ConvStageGradients& stage : wanted.stages) {
    clear(stage.weight);
    clear(stage.bias);
    clear(stage.bn);
  }
}

bool is_empty(const ConvChainArguments& chain) { return chain.x.device == Device::cpu && chain.y.elements() == 0; }

bool is_empty(const ConvChainBackwardArguments& chain) {
  return chain.forward.x.device == Device::cpu && chain.grad_y.elements() == 0;
}

constexpr Operator<ConvChainArguments> kForward{
    .name = "conv_chain",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .plan = [](const ConvChainArguments& chain,
               int threads) { return tuning::plan_chosen(kForwardRole, chain, threads); },
    .candidates = [](const ConvChainArguments& chain,
                     int threads) { return tuning::candidates(kForwardRole, chain, threads); },
};

constexpr Operator<ConvChainBackwardArguments> kBackward{
    .name = "conv_chain_backward",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
    .plan = [](const ConvChainBackwardArguments& chain,
               int threads) { return tuning::plan_chosen(kBackwardRole, chain, threads); },
    .candidates = [](const ConvChainBackwardArguments& chain,
                     int threads) { return tuning::candidates(kBackwardRole, chain, threads); },
};

}  // namespace

bool ends_in_pass(const ConvChainArguments& chain) {
  const ConvStage& last = chain.stages.back();
  return last.bn || last.activation != Activation::identity || chain.branch_scale;
}

bool reads_raw(const ConvChainArguments& chain, std::size_t stage) {
  const ConvStage& own = chain.stages[stage];
  return stage + 1 < chain.stages.size() || own.bn || own.activation != Activation::identity;
}

FUSEDSC_CHOOSING_OPERATOR(conv_chain, ConvChainArguments, kForward)
FUSEDSC_CHOOSING_OPERATOR(conv_chain_backward, ConvChainBackwardArguments, kBackward)

}  // namespace fusedsc
