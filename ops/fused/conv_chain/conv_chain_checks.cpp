#include "fusedsc/fused/conv_chain/conv_chain_checks.h"

#include <optional>
#include <string>
#include <vector>

#include "fusedsc/common/checks/check_part.h"
#include "fusedsc/common/checks/checks.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"

namespace fusedsc {
namespace {

void check_tensor(const NamedTensor& tensor, const Sizes& sizes, DataType dtype, const char* whose) {
  check_sizes(tensor, sizes, whose);
  check_dtype(tensor, dtype, "that of x");
  check_writable(tensor);
}

void check_batch_norm(const BatchNormParameters& bn, std::int64_t channels, DataType dtype) {
  check_channels("bn.weight", bn.weight, channels, dtype);
  check_channels("bn.bias", bn.bias, channels, dtype);
  check_channels_given("bn.mean", bn.mean, channels, dtype);
  check_channels_given("bn.invstd", bn.invstd, channels, dtype);
  check_channels("bn.variance", bn.variance, channels, dtype);
  check_channels("bn.scale", bn.scale, channels, dtype);
  check_channels("bn.shift", bn.shift, channels, dtype);
  check(static_cast<bool>(bn.scale) == static_cast<bool>(bn.shift),
        "bn.scale and .shift: only one is given; give both or neither");
  check(bn.eps >= 0, "bn.eps: it is ", bn.eps, "; it must not be negative");
}

/// The memory of a chain: what is written may not overlap anything else.
class ChainMemory {
 public:
  void reads(const NamedTensor& tensor, std::optional<std::size_t> stage = {}) { read_.push_back({tensor, stage}); }
  void writes(const NamedTensor& tensor, std::optional<std::size_t> stage = {}) { written_.push_back({tensor, stage}); }

  void check_no_overlap() const {
    for (auto output = written_.begin(); output != written_.end(); ++output) {
      for (const Entry& input : read_) check_pair(*output, input);
      for (auto other = written_.begin(); other != output; ++other) check_pair(*output, *other);
    }
  }

 private:
  struct Entry {
    NamedTensor tensor;
    std::optional<std::size_t> stage;

    std::string name() const { return stage ? name_of_part("stages", *stage, tensor.name) : tensor.name; }
  };

  static void check_pair(const Entry& output, const Entry& other) {
    if (!overlap(output.tensor.view, other.tensor.view)) return;
    throw InvalidArgument(output.name() + ": its memory overlaps that of " + other.name() +
                          "; pass memory of its own for " + output.name());
  }

  std::vector<Entry> read_, written_;
};

/// Everything but y, which backward does not look at.
std::vector<Sizes> check_chain(const ConvChainArguments& chain) {
  const DataType dtype = chain.x.dtype, vectors = accumulation_type(dtype);
  check(!chain.stages.empty(), "stages: there are none; give at least one");
  check_readable({"x", chain.x});
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    check_part("stages", i, [&, weight = NamedTensor("weight", chain.stages[i].weight)] {
      check_readable(weight);
      check_dtype(weight, dtype, "that of x");
      check_device(weight, chain.x.device);
    });
  }
  std::vector<Sizes> sizes = conv_chain_sizes(chain);
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    check_part("stages", i, [&, &stage = chain.stages[i]] {
      check_channels("bias", stage.bias, sizes[i][1], dtype);
      if (stage.bn) check_batch_norm(*stage.bn, sizes[i][1], vectors);
      if (stage.raw) check_tensor({"raw", stage.raw}, sizes[i], dtype, "those of the convolution's result");
    });
  }
  const Sizes& y = sizes.back();
  check(!chain.residual || y == chain.x.sizes, "residual: x is ", printed(chain.x.sizes), ", the result ", printed(y),
        "; adding them needs equal sizes: as many output channels as input channels, and stride 1");
  check(!chain.repeats_training || !chain.training,
        "repeats_training: it is given in training, whose statistics are not there yet; give it in eval mode");
  check(chain.merge == nullptr || chain.training || chain.repeats_training,
        "merge: it is given in eval mode, which takes no statistics; leave it out");
  if (chain.branch_scale) {
    check(chain.branch_scale.size == y[0], "branch_scale: it has ", chain.branch_scale.size, " values, but must have ",
          y[0], ", one per image");
    check_channels("branch_scale", chain.branch_scale, y[0], vectors);
  }
  return sizes;
}

}  // namespace

std::vector<Sizes> conv_chain_sizes(const ConvChainArguments& chain) {
  std::vector<Sizes> sizes;
  Sizes x = chain.x.sizes;
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    const ConvStage& stage = chain.stages[i];
    check_part("stages", i, [&] {
      x = stage.kind == ConvStage::Kind::depthwise ? depthwise_output_sizes(x, stage.weight.sizes, stage.window)
                                                   : pointwise_output_sizes(x, stage.weight.sizes, 1);
    });
    sizes.push_back(x);
  }
  return sizes;
}

void check_problem(const ConvChainArguments& chain) {
  const std::vector<Sizes> sizes = check_chain(chain);
  check_tensor({"y", chain.y}, sizes.back(), chain.x.dtype, "the result's sizes");
}

void check_problem(const ConvChainBackwardArguments& gradients) {
  const ConvChainArguments& chain = gradients.forward;
  const std::vector<Sizes> sizes = check_chain(chain);
  const DataType dtype = chain.x.dtype, vectors = accumulation_type(dtype);
  check_readable({"grad_y", gradients.grad_y});
  check_sizes({"grad_y", gradients.grad_y}, sizes.back(), "the result's sizes");
  check_dtype({"grad_y", gradients.grad_y}, dtype, "that of x");
  if (gradients.grad_x) check_tensor({"grad_x", gradients.grad_x}, chain.x.sizes, dtype, "those of x");
  check(gradients.stages.size() == chain.stages.size(), "stages: there are gradients of ", gradients.stages.size(),
        ", but forward has ", chain.stages.size(), "; give as many");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    check_part("stages", i, [&, &wanted = gradients.stages[i], channels = sizes[i][1]] {
      if (wanted.weight) {
        check_tensor({"grad_weight", wanted.weight}, chain.stages[i].weight.sizes, dtype, "those of weight");
      }
      check_channels("grad_bias", wanted.bias, channels, dtype);
      check_channels("grad_bn.weight", wanted.bn.weight, channels, vectors);
      check_channels("grad_bn.bias", wanted.bn.bias, channels, vectors);
      check(chain.stages[i].bn || !(wanted.bn.weight || wanted.bn.bias),
            "grad_bn: it is wanted, but the stage has no BatchNorm; leave it out");
    });
  }
}

void check_memory(const ConvChainArguments& chain) {
  check_given({"x", chain.x});
  check_given({"y", chain.y});
  ChainMemory memory;
  memory.reads({"x", chain.x});
  memory.reads({"branch_scale", chain.branch_scale});
  memory.writes({"y", chain.y});
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    const ConvStage& stage = chain.stages[i];
    check_part("stages", i, [&] { check_given({"weight", stage.weight}); });
    memory.reads({"weight", stage.weight}, i);
    memory.reads({"bias", stage.bias}, i);
    memory.writes({"raw", stage.raw}, i);
    if (!chain.training || !stage.bn) continue;  // in eval mode the statistics are read
    memory.writes({"bn.mean", stage.bn->mean}, i);
    memory.writes({"bn.invstd", stage.bn->invstd}, i);
    memory.writes({"bn.variance", stage.bn->variance}, i);
    memory.writes({"bn.scale", stage.bn->scale}, i);
    memory.writes({"bn.shift", stage.bn->shift}, i);
  }
  memory.check_no_overlap();
}

void check_memory(const ConvChainBackwardArguments& gradients) {
  const ConvChainArguments& chain = gradients.forward;
  check_given({"x", chain.x});
  check_given({"grad_y", gradients.grad_y});
  ChainMemory memory;
  memory.reads({"x", chain.x});
  memory.reads({"grad_y", gradients.grad_y});
  memory.reads({"branch_scale", chain.branch_scale});
  memory.writes({"grad_x", gradients.grad_x});
  for (std::size_t i = 0; i < chain.stages.size(); ++i) {
    const ConvStage& stage = chain.stages[i];
    check_part("stages", i, [&] {
      check_given({"weight", stage.weight});
      check(stage.raw || !reads_raw(chain, i) || gradients.grad_y.elements() == 0,
            "raw: its data is null, but backward reads it; pass what forward left there");
    });
    memory.reads({"weight", stage.weight}, i);
    memory.reads({"raw", stage.raw}, i);
    const ConvStageGradients& wanted = gradients.stages[i];
    memory.writes({"grad_weight", wanted.weight}, i);
    memory.writes({"grad_bias", wanted.bias}, i);
    memory.writes({"grad_bn.weight", wanted.bn.weight}, i);
    memory.writes({"grad_bn.bias", wanted.bn.bias}, i);
  }
  memory.check_no_overlap();
}

}  // namespace fusedsc
