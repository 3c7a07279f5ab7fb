/// Whether a choice that was measured on a GPU once is one still: there is such a kernel, and its config fits the
/// problem.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/members.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/sliding_channel.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/sliding_channel.h"
#include "fusedsc/forward/sparse.h"
#include "fusedsc/fused/members.h"
#include "fusedsc/tuning/recorder.h"
#include "host_executor/executor.h"
#include "host_executor/problem_reading.h"

namespace fusedsc {

class Fitting {
 public:
  explicit Fitting(int multiprocessors) : before_(gpu::executor::multiprocessors()) {
    gpu::executor::set_wave_size(32);
    gpu::executor::set_multiprocessors(multiprocessors);
    gpu::executor::set_shared_memory_limit(kSharedMemory);
  }
  ~Fitting() {
    tuning::stop_recording();
    gpu::executor::set_multiprocessors(before_);
    gpu::executor::set_shared_memory_limit(0);
    gpu::executor::set_resident_blocks(kResident);
  }
  Fitting(const Fitting&) = delete;
  Fitting& operator=(const Fitting&) = delete;

  /// Empty, or in a sentence why not.
  std::string why_not(const std::string& role, const std::string& problem, const std::string& choice) {
    const Met& known = known_of(role, problem);
    if (!known.met) return "no operator meets such a problem: " + known.why;
    const auto fits = known.choices.find(choice);
    if (fits == known.choices.end()) return "no kernel of " + role + " has that choice for it";
    std::string why;
    gpu::executor::set_resident_blocks(fits->second);
    try {
      known.met->plan(choice);
    } catch (const Unsupported& error) {
      why = error.what();
    }
    gpu::executor::set_resident_blocks(kResident);
    return why;
  }

  /// What the role's prior takes; empty where no operator meets such a problem.
  std::string prior(const std::string& role, const std::string& problem) {
    const Met& known = known_of(role, problem);
    const std::vector<std::string> first = known.met ? known.met->candidates(1) : std::vector<std::string>();
    return first.empty() ? "" : first.front();
  }

 private:
  static constexpr std::size_t kSharedMemory = 227 * 1024;  ///< of a block, on the GPUs that rows are of
  static constexpr int kResident = 2, kMostResident = 8;

  struct Met {
    std::shared_ptr<tuning::Problem> met;
    std::map<std::string, int> choices;  ///< with as many blocks to a multiprocessor as there are with it
    std::string why;
  };

  const Met& known_of(const std::string& role, const std::string& problem) {
    const auto [known, is_new] = problems_.try_emplace({role, problem});
    if (is_new) known->second = met(role, problem);
    return known->second;
  }

  static Met met(const std::string& role, const std::string& problem) {
    tuning::start_recording();
    Met found;
    try {
      plan(role, problem);
      // Kernels that are made of others plan these; such a kernel need not be what is taken.
      for (std::size_t i = 0; i < tuning::recorded_problems().size() && !found.met; ++i) {
        for (const auto& one : tuning::recorded_problems()) {
          if (one->role == role && one->text == problem) found.met = one;
        }
        if (!found.met) tuning::recorded_problems()[i]->candidates(1'000'000);
      }
    } catch (const std::exception& error) {
      found.why = error.what();
    }
    // How many blocks fit a multiprocessor is a GPU's to say: with some number there is what was measured there.
    for (int resident = 1; found.met && resident <= kMostResident; ++resident) {
      gpu::executor::set_resident_blocks(resident);
      for (const std::string& choice : found.met->choices()) found.choices.emplace(choice, resident);
    }
    gpu::executor::set_resident_blocks(kResident);
    return found;
  }

  static void plan(const std::string& role, const std::string& problem) {
    const bool is_forward = role.ends_with(".forward");
    if (role.starts_with("depthwise_conv2d.")) {
      if (is_forward) plan_depthwise_conv2d(problem_from<DepthwiseArguments>(problem), 1);
      else plan_depthwise_conv2d_backward(problem_from<DepthwiseBackwardArguments>(problem), 1);
    } else if (role.starts_with("pointwise_conv2d.")) {
      if (is_forward) plan_pointwise_conv2d(problem_from<PointwiseArguments>(problem), 1);
      else plan_pointwise_conv2d_backward(with_both(role, problem_from<PointwiseBackwardArguments>(problem)), 1);
    } else if (role.starts_with("sliding_channel_conv2d.")) {
      if (is_forward) plan_sliding_channel_conv2d(problem_from<SlidingChannelArguments>(problem), 1);
      else plan_sliding_channel_conv2d_backward(problem_from<SlidingChannelBackwardArguments>(problem), 1);
    } else if (role.starts_with("dsc_block.")) {
      if (is_forward) plan_dsc_block(problem_from<DscBlockArguments>(problem), 1);
      else plan_dsc_block_backward(problem_from<DscBlockBackwardArguments>(problem), 1);
    } else if (role.starts_with("conv_bn_act.")) {
      if (is_forward) plan_conv_bn_act(problem_from<ConvBnActArguments>(problem), 1);
      else plan_conv_bn_act_backward(problem_from<ConvBnActBackwardArguments>(problem), 1);
    } else if (role.starts_with("conv_chain.")) {
      if (is_forward) plan_conv_chain(problem_from<ConvChainArguments>(problem), 1);
      else plan_conv_chain_backward(problem_from<ConvChainBackwardArguments>(problem), 1);
    } else {
      check(role == "sparse_conv2d.forward", "there is no role ", role);
      plan_sparse_conv2d(problem_from<SparseArguments>(problem), 1);
    }
  }

  /// One gradient alone is a problem of its own where both are wanted.
  static PointwiseBackwardArguments with_both(const std::string& role, PointwiseBackwardArguments arguments) {
    const auto like = [](const ConstTensorView& tensor) {
      return TensorView(const_cast<void*>(tensor.data), tensor.dtype, tensor.sizes, tensor.strides, tensor.device);
    };
    if (role.ends_with(".grad_input")) arguments.grad_weight = like(arguments.weight);
    if (role.ends_with(".grad_weight")) arguments.grad_x = like(arguments.x);
    return arguments;
  }

  std::map<std::pair<std::string, std::string>, Met> problems_;
  int before_;
};

}  // namespace fusedsc
