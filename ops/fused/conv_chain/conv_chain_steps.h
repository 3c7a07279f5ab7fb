/// What the implementations of a chain of convolutions share: sequences of operators, and tensors between them.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <variant>
#include <vector>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/forward/recomputed.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/fused/conv_chain.h"
#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {

inline auto plan_step(const DepthwiseArguments& a, int threads) { return plan_depthwise_conv2d(a, threads); }
inline auto plan_step(const PointwiseArguments& a, int threads) { return plan_pointwise_conv2d(a, threads); }
inline auto plan_step(const DscBlockArguments& a, int threads) { return plan_dsc_block(a, threads); }
inline auto plan_step(const BatchNormApplyArguments& a, int threads) { return plan_batch_norm_apply(a, threads); }
inline auto plan_step(const BatchNormReduceArguments& a, int threads) { return plan_batch_norm_reduce(a, threads); }
inline auto plan_step(const DepthwiseBackwardArguments& a, int threads) {
  return plan_depthwise_conv2d_backward(a, threads);
}
inline auto plan_step(const PointwiseBackwardArguments& a, int threads) {
  return plan_pointwise_conv2d_backward(a, threads);
}

/// Operators that run one after the other, in the same workspace.
template <class... Arguments>
class Steps {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  /// What was computed before, as `first`, is computed again.
  template <class Step>
  void add_recomputed(Step step, Step first) {
    firsts_.emplace(steps_.size(), std::move(first));
    add(std::move(step));
  }

  struct Plans {
    std::vector<std::variant<Plan<Arguments>...>> plans;

    std::size_t workspace_bytes() const {
      std::size_t most = 0;
      for (const auto& plan : plans) {
        most = std::max(most, std::visit([](const auto& each) { return each.workspace_bytes; }, plan));
      }
      return most;
    }
  };

  Plans plan(int threads) const {
    Plans plans;
    plans.plans.reserve(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      std::visit(
          [&]<class Step>(const Step& arguments) {
            if constexpr (requires { plan_recomputed(arguments, arguments, threads); }) {
              if (const auto first = firsts_.find(i); first != firsts_.end()) {
                plans.plans.emplace_back(plan_recomputed(arguments, std::get<Step>(first->second), threads));
                return;
              }
            }
            plans.plans.emplace_back(plan_step(arguments, threads));
          },
          steps_[i]);
    }
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    run(plans, execution, [](std::size_t) {});
  }
  /// `after` is called with the number of each step behind it.
  template <class After>
  void run(const Plans& plans, const Execution& execution, const After& after) const {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      std::visit(
          [&]<class Step>(const Step& arguments) {  // whose memory is the chain's, or was checked with its arguments
            std::get<Plan<Step>>(plans.plans[i]).unchecked_run(arguments, execution);
          },
          steps_[i]);
      after(i);
    }
  }
  std::size_t size() const { return steps_.size(); }

 private:
  std::vector<std::variant<Arguments...>> steps_;
  std::map<std::size_t, std::variant<Arguments...>> firsts_;  ///< of the steps that are recomputed
};

/// Results of a chain's convolutions without memory, in an order of memory like x's.
inline std::vector<TensorView> unplaced_results(const ConvChainArguments& chain) {
  const Layout layout = layout_of(chain.x.sizes, chain.x.strides);
  std::vector<TensorView> results;
  for (const Sizes& sizes : conv_chain_sizes(chain)) {
    results.emplace_back(nullptr, chain.x.dtype, sizes, dense_strides(sizes, layout), chain.x.device);
  }
  return results;
}

/// Gives memory to those that have none. Of tensors made one from the other only two are there at a time: every second
/// one lies where the last but one did.
inline void place_by_turns(std::vector<TensorView>& tensors, Arena& arena) {
  const auto bytes = [](const TensorView& tensor) {
    return tensor.elements() * static_cast<std::int64_t>(size_of(tensor.dtype));
  };
  std::array<std::int64_t, 2> most = {-1, -1};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]) most[i % 2] = std::max(most[i % 2], bytes(tensors[i]));
  }
  std::array<char*, 2> memory = {};
  for (const std::size_t turn : {0, 1}) {
    if (most[turn] >= 0) memory[turn] = arena.take<char>(most[turn]);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]) tensors[i].data = memory[i % 2];
  }
}

/// The convolution of a stage, forward or backward: what the two have alike, and what `set` adds. It is handed to
/// `add`.
template <class Depthwise, class Pointwise, class Set, class Add>
void add_convolution(const ConvStage& stage, bool allow_tf32, const Set& set, const Add& add) {
  if (stage.kind == ConvStage::Kind::depthwise) {
    Depthwise depthwise;
    depthwise.weight = stage.weight;
    depthwise.window = stage.window;
    set(depthwise);
    add(depthwise);
  } else {
    Pointwise pointwise;
    pointwise.weight = stage.weight;
    pointwise.allow_tf32 = allow_tf32;
    set(pointwise);
    add(pointwise);
  }
}

}  // namespace fusedsc
