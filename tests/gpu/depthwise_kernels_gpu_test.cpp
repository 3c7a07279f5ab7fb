/// The registry of depthwise kernels: every kernel with its configs by force, on a few problems that fit each (on a GPU
/// all configs, on the host executor those that a ConfigTour takes); what force says when it cannot; and that explain,
/// the trace and the plan say the same.
#include <map>

#include "gpu/depthwise_forced.h"

namespace fusedsc::reference {
namespace {

class DepthwiseKernelsGpu : public OnGpu {
 protected:
  static std::vector<DepthwiseGeometry> geometries() {
    return {{{2, 40, 11, 12}, centered(3)},
            {{3, 72, 13, 16}, centered(5)},
            {{5, 16, 14, 14}, centered(3, 2)},
            {{2, 24, 17, 34}, centered(5, 2)},
            {{2, 72, 11, 56}, centered(3)},  // wide: segments of whole rows
            {{2, 72, 12, 56}, centered(5, 2)},
            {{2, 136, 9, 40}, centered(3)},
            {{9, 48, 7, 7}, centered(3)},
            {{2, 12, 13, 12}, centered(7)},
            {{5, 40, 9, 14}, centered(7)},
            {{2, 8, 12, 15}, {{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}},
            {{2, 6, 11, 13}, {{2, 3}, {3, 1}, {1, 1}, {1, 1, 0, 1}}, 2}};
  }

  /// Of bfloat16, which differs from float16 in its conversions alone, a kernel is known after a few runs.
  static bool is_known(const std::map<std::string, int>& runs, const std::string& kernel) {
    const auto found = runs.find(kernel);
    return GetParam().dtype == DataType::bfloat16 && found != runs.end() && found->second >= 4;
  }

  /// Whether every kernel had a problem, of those that this GPU and type have any.
  template <class Kernels>
  static void expect_all(const Kernels& kernels, const std::map<std::string, int>& runs) {
    const DataType dtype = GetParam().dtype;
    for (const auto& kernel : kernels) {
      const std::string name = kernel.name;
      const bool is_hoppers = name.find("hopper_") != std::string::npos, is_half = size_of(dtype) == 2;
      const bool is_products = name.find("tiles") != std::string::npos || name.find("patches") != std::string::npos ||
                               name.find("matrix") != std::string::npos;
      const bool is_columns = name.find("columns") != std::string::npos;
      if (name == "cpu" || name == "cpu_planes" || name == "generated" || (is_hoppers && !has_hopper(dtype))) continue;
      if ((is_products && !is_half) || (is_columns && dtype != DataType::float32)) continue;
      if (name.find("matrix") != std::string::npos && runs.count(name) == 0) continue;  // NVIDIA's alone
      EXPECT_GT(runs.count(name), 0u) << "no problem of this test is for " << name;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseKernelsGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(DepthwiseKernelsGpu, Forward) {
  std::map<std::string, int> runs;
  ConfigTour tour;
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const ForwardFusion& fusion :
           {ForwardFusion{}, ForwardFusion{.bias = true, .output = ForwardFusion::Output::statistics},
            ForwardFusion{.prologue = true,
            .activation = Activation::relu6,
            .output = ForwardFusion::Output::epilogue,
            .epilogue_activation = Activation::relu,
            .residual = true}}) {
        const DepthwiseForwardCase problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        ForwardTensors<DepthwiseGeometry> tensors(problem);
        const DepthwiseArguments arguments = tensors.arguments(problem);
        for (const auto& kernel : able(gpu::depthwise_gpu_kernels(), arguments)) {
          if (is_known(runs, kernel.name)) continue;
          for (const std::string& choice : tour.next(kernel, arguments, 2)) {
            verify_forward_by(problem, choice);
            ++runs[kernel.name];
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  tour.record(kForwardRole);
  expect_all(gpu::depthwise_gpu_kernels(), runs);
}

TEST_P(DepthwiseKernelsGpu, Backward) {
  std::map<std::string, std::map<std::string, int>> runs;
  std::map<std::string, ConfigTour> tours;
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const BackwardFusion& fusion : {BackwardFusion{}, BackwardFusion{.grad_bias = false},
                                           BackwardFusion{.grad_weight = false, .grad_bias = false},
                                           BackwardFusion{.prologue = true,
                                           .activation = Activation::relu6,
                                           .gradient_prologue = true,
                                           .sums = true,
                                           .grad_bias = false}}) {
        const DepthwiseBackwardCase problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        BackwardTensors<DepthwiseGeometry> tensors(problem);
        const DepthwiseBackwardArguments arguments = tensors.arguments(problem);
        for (const char* role : {kBackwardRole, kInputRole, kWeightRole}) {
          for (const auto& kernel : able_backward(problem, role)) {
            if (is_known(runs[role], kernel.name)) continue;
            for (const std::string& choice : tours[role].next(kernel, arguments, 1)) {
              verify_backward_by(problem, role, choice);
              ++runs[role][kernel.name];
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
  for (const auto& [role, tour] : tours) tour.record(role.c_str());
  expect_all(depthwise_backward_kernels(), runs[kBackwardRole]);
  expect_all(gpu::depthwise_input_kernels(), runs[kInputRole]);
  expect_all(gpu::depthwise_weight_kernels(), runs[kWeightRole]);
}

/// The plan of a config that explain prints is the one that is taken without force.
TEST_P(DepthwiseKernelsGpu, ExplainSaysWhatRuns) {
  for (const DepthwiseGeometry& geometry : geometries()) {
    const DepthwiseForwardCase problem{GetParam().dtype, geometry, {}, Memories::all(Memory::channels_last)};
    ForwardTensors<DepthwiseGeometry> tensors(problem);
    const DepthwiseArguments arguments = tensors.arguments(problem);
    verify_forward_by(problem, expect_explained(kForwardRole, explain_depthwise_conv2d(arguments),
                                                [&] { run(DepthwiseGeometry::kForward, arguments); }));
  }
}

/// Messages name what there is; nothing runs in the place of what is forced; the next call works.
TEST_P(DepthwiseKernelsGpu, ForceSaysWhatItCannot) {
  const auto message_of = [](const auto& call) {
    try {
      call();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& message, const char* part) { return message.find(part) != std::string::npos; };
  const std::string no_role = message_of([] { tuning::force("depthwise_conv2d.sideways", "gpu_rows"); });
  EXPECT_TRUE(has(no_role, "unknown role") && has(no_role, kForwardRole) && has(no_role, kWeightRole)) << no_role;
  const std::string no_kernel = message_of([] { tuning::force(kForwardRole, "gpu_magic/rows=1"); });
  EXPECT_TRUE(has(no_kernel, "no kernel \"gpu_magic\"") && has(no_kernel, "gpu_rows")) << no_kernel;
  for (const char* config :
       {"gpu_rows/height=3", "gpu_rows/rows", "gpu_rows/rows=x", "gpu_rows/rows=-1", "gpu_rows/="}) {
    EXPECT_NE(message_of([&] { tuning::force(kForwardRole, config); }), "") << config;
  }
  EXPECT_EQ(tuning::force(kForwardRole, ""), "") << "what was refused is not forced";

  const DepthwiseForwardCase problem{
      GetParam().dtype, {{1, 8, 9, 10}, centered(4)}, {}, Memories::all(Memory::contiguous)};
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  const DepthwiseArguments arguments = tensors.arguments(problem);
  const auto refused = [&](const std::string& choice) {
    const Forced forced(kForwardRole, choice);
    EXPECT_THROW(run(DepthwiseGeometry::kForward, arguments), Unsupported) << choice;
    return message_of([&] { run(DepthwiseGeometry::kForward, arguments); });
  };
  const std::string cannot = refused("gpu_rows");
  EXPECT_TRUE(has(cannot, "gpu_rows is forced, but cannot") && has(cannot, "gpu_taps: it can")) << cannot;
  const std::string no_fit = refused("gpu_windows/channels=77 rows=1 columns=4");
  EXPECT_TRUE(has(no_fit, "channels=77")) << no_fit;
  refused("cpu");
  verify_forward(problem);
}

}  // namespace
}  // namespace fusedsc::reference
