/// MobileNetV2 for small images, of fused blocks, with the state_dict keys of torchvision's.
#pragma once

#include <operators.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace mobilenetv2 {

namespace nn = torch::nn;

/// Convolution, BatchNorm, ReLU6.
struct ConvNormActImpl : nn::Module {
  nn::Conv2d conv;
  nn::BatchNorm2d norm;

  ConvNormActImpl(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t groups)
      : conv(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).groups(groups).bias(false)),
        norm(out) {
    register_module("0", conv);
    register_module("1", norm);
  }

  torch::Tensor forward(const torch::Tensor& x) { return norm(conv(x)).clamp_(0, 6); }
};
TORCH_MODULE(ConvNormAct);

/// [1x1 expand, BatchNorm, ReLU6,] depthwise, BatchNorm, ReLU6, 1x1 project, BatchNorm [, + x], in one operator. The
/// children only hold the parameters.
struct InvertedResidualImpl : nn::Module {
  ConvNormAct expand = nullptr;
  ConvNormAct depthwise;
  nn::Conv2d project;
  nn::BatchNorm2d norm;
  int64_t stride;
  bool residual;

  InvertedResidualImpl(int64_t in, int64_t out, int64_t stride, int64_t expansion)
      : depthwise(in * expansion, in * expansion, 3, stride, in * expansion),
        project(nn::Conv2dOptions(in * expansion, out, 1).bias(false)),
        norm(out),
        stride(stride),
        residual(stride == 1 && in == out) {
    nn::ModuleList conv;
    if (expansion != 1) {
      expand = ConvNormAct(in, in * expansion, 1, 1, 1);
      conv->push_back(expand);
    }
    conv->push_back(depthwise);
    conv->push_back(project);
    conv->push_back(norm);
    register_module("conv", conv);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const double eps = norm->options.eps();
    const double momentum = *norm->options.momentum();
    const auto expand_weight = expand ? std::optional(expand->conv->weight) : std::nullopt;
    return fusedsc::aten::inverted_residual(x, expand_weight, expand ? state(expand->norm) : no_state(),
                                            depthwise->conv->weight, state(depthwise->norm), project->weight,
                                            state(norm), is_training(), at::ArrayRef<double>(momentum), eps, "relu6",
                                            stride, 1, 1, residual);
  }

 private:
  static fusedsc::aten::TensorOptionals state(const nn::BatchNorm2d& norm) {
    return fusedsc::aten::TensorOptionals(
        {norm->weight, norm->bias, norm->running_mean, norm->running_var, norm->num_batches_tracked});
  }

  static fusedsc::aten::TensorOptionals no_state() {
    return fusedsc::aten::TensorOptionals(std::vector<std::optional<torch::Tensor>>(5));
  }
};
TORCH_MODULE(InvertedResidual);

/// The first convolution keeps the resolution instead of halving it, because the images are small.
struct MobileNetV2Impl : nn::Module {
  nn::Sequential features;
  nn::Sequential classifier;

  MobileNetV2Impl(int64_t classes, double width) {
    struct Stage {
      int64_t expansion, channels, blocks, stride;
    };
    constexpr std::array<Stage, 7> kStages = {
        {{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}}};
    int64_t channels = scaled(32, width);
    const int64_t last_channels = scaled(1280, std::max(1.0, width));
    features->push_back(ConvNormAct(3, channels, 3, 1, 1));
    for (const Stage& stage : kStages) {
      for (int64_t block = 0; block < stage.blocks; ++block) {
        const int64_t out = scaled(stage.channels, width);
        features->push_back(InvertedResidual(channels, out, block == 0 ? stage.stride : 1, stage.expansion));
        channels = out;
      }
    }
    features->push_back(ConvNormAct(channels, last_channels, 1, 1, 1));
    classifier->push_back(nn::Dropout(0.2));
    classifier->push_back(nn::Linear(last_channels, classes));
    register_module("features", features);
    register_module("classifier", classifier);
    initialize();
  }

  torch::Tensor forward(const torch::Tensor& x) { return classifier->forward(features->forward(x).mean({2, 3})); }

 private:
  /// The width-scaled number of channels: a multiple of 8, and not less than 90% of the exact one.
  static int64_t scaled(int64_t channels, double width) {
    const double exact = static_cast<double>(channels) * width;
    const int64_t rounded = std::max<int64_t>(8, static_cast<int64_t>(exact + 4) / 8 * 8);
    return static_cast<double>(rounded) < 0.9 * exact ? rounded + 8 : rounded;
  }

  void initialize() {
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* conv = module->as<nn::Conv2dImpl>()) {
        nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut);
      } else if (auto* linear = module->as<nn::LinearImpl>()) {
        nn::init::normal_(linear->weight, 0, 0.01);
        nn::init::zeros_(linear->bias);
      }
    }
  }
};
TORCH_MODULE(MobileNetV2);

}  // namespace mobilenetv2
