/// The gate of squeeze-and-excitation by two launches.
#include "fusedsc/fused/squeeze_excite_gate.h"

#include "fusedsc/common/status.h"
#include "gpu/gpu_under_test.h"
#include "ops/cases.h"
#include "ops/verify.h"
#include "reference/activation.h"

namespace fusedsc::reference {
namespace {

class SqueezeExciteGateGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, SqueezeExciteGateGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

struct GateCase {
  DataType dtype;
  std::int64_t images, channels, squeezed;
  Activation activation;
  GateFunction function;
  bool biases;
};

/// function(weight*x + bias), its sums as the library keeps them; function: of a bounded sum.
template <class Function>
Array layer(const Precision& precision, const Array& x, const Array& weight, const Vector& bias,
            const Function& function) {
  Array y({x.sizes[0], weight.sizes[0], 1, 1});
  for_each_index(y.sizes, [&](auto n, auto m, auto, auto) {
    Sum sum;
    for (std::int64_t k = 0; k < x.sizes[1]; ++k) sum.add(product(x.at(n, k, 0, 0), weight.at(m, k, 0, 0)));
    if (!bias.empty()) sum.add(bias[static_cast<std::size_t>(m)]);
    y.at(n, m, 0, 0) = function(sum.result(precision));
  });
  return y;
}

struct GateTensors {
  Tensor mean, reduce_weight, expand_weight, hidden, gate;
  Channels reduce_bias, expand_bias;

  explicit GateTensors(const GateCase& of)
      : mean(of.dtype, {of.images, of.channels, 1, 1}),
        reduce_weight(of.dtype, {of.squeezed, of.channels, 1, 1}),
        expand_weight(of.dtype, {of.channels, of.squeezed, 1, 1}),
        hidden(accumulation_type(of.dtype), {of.images, of.squeezed, 1, 1}),
        gate(of.dtype, mean.sizes()) {
    Random random(41);
    mean.fill(random, 0, 2);
    for (Tensor* weight : {&reduce_weight, &expand_weight}) weight->fill(random, -0.3, 0.3);
    if (!of.biases) return;
    reduce_bias = Channels(of.dtype, of.squeezed).fill(random, -1, 1);
    expand_bias = Channels(of.dtype, of.channels).fill(random, -1, 1);
  }

  SqueezeExciteGateArguments arguments(const GateCase& of) {
    return {mean, reduce_weight, reduce_bias, of.activation, expand_weight, expand_bias, of.function, hidden, gate};
  }
};

void verify_gate(const GateCase& of) {
  GateTensors tensors(of);
  const Precision precision(of.dtype);
  const auto activated = [&](const Bounded& z) { return activate(precision, of.activation, z); };
  const auto gated = [&](const Bounded& z) {
    return apply(
        precision,
        [&](double at) {
          return of.function == GateFunction::sigmoid ? 1 / (1 + std::exp(-at)) : std::clamp(at + 3, 0.0, 6.0) / 6;
        },
        z);
  };
  const Array hidden =
      layer(precision, tensors.mean.values(), tensors.reduce_weight.values(), tensors.reduce_bias.values(), activated);
  const Array gate = layer(precision, hidden, tensors.expand_weight.values(), tensors.expand_bias.values(), gated);
  const auto run_once = [&] {
    tensors.hidden.wipe();
    tensors.gate.wipe();
    squeeze_excite_gate(tensors.arguments(of), {});
    memory().wait();
  };
  run_once();
  EXPECT_TRUE(matches(tensors.gate, gate))
      << of.images << " images, " << of.channels << " and " << of.squeezed << " channels, " << name_of(of.activation);
  EXPECT_TRUE(tensors.hidden.surroundings_untouched());
  const Tensor before = tensors.gate;
  run_once();
  EXPECT_TRUE(tensors.gate.same_bits(before));
}

/// Rows that are whole vectors and others, outputs that fill no block, images that fill no group; each function.
TEST_P(SqueezeExciteGateGpu, Gates) {
  for (const bool aligned : {true, false}) {
    align_tensors(aligned);
    for (const auto& [images, channels, squeezed] : {std::array<std::int64_t, 3>{1, 64, 16},
                                                     {1, 72, 24},
                                                     {4, 40, 8},
                                                     {5, 33, 7},
                                                     {9, 6, 1},
                                                     {2, 1, 3},
                                                     {32, 320, 80}}) {
      verify_gate({GetParam().dtype, images, channels, squeezed, Activation::relu, GateFunction::hardsigmoid, true});
    }
  }
  align_tensors(true);
  for (const Activation activation : kActivations) {
    for (const GateFunction function : {GateFunction::sigmoid, GateFunction::hardsigmoid}) {
      verify_gate({GetParam().dtype, 3, 48, 12, activation, function, function == GateFunction::sigmoid});
    }
  }
}

TEST_P(SqueezeExciteGateGpu, Reasons) {
  const GateCase many{GetParam().dtype, kMostGateImages + 1, 8, 4, Activation::relu, GateFunction::sigmoid, true};
  GateTensors tensors(many);
  EXPECT_NE(why_not_squeeze_excite_gate(tensors.arguments(many)), "");
  EXPECT_THROW(squeeze_excite_gate(tensors.arguments(many), {}), Unsupported);
  const GateCase few{GetParam().dtype, 2, 8, 4, Activation::relu, GateFunction::sigmoid, true};
  GateTensors right(few);
  const auto refused = [&](const auto& spoil) {
    SqueezeExciteGateArguments wrong = right.arguments(few);
    EXPECT_EQ(why_not_squeeze_excite_gate(wrong), "");
    spoil(wrong);
    EXPECT_THROW(squeeze_excite_gate(wrong, {}), InvalidArgument);
  };
  refused([](auto& a) { a.reduce_weight.sizes[1] = 9; });
  refused([](auto& a) { a.expand_weight.strides = {1, 8, 8, 8}; });
  refused([](auto& a) { a.hidden = a.gate; });
  refused([](auto& a) { a.expand_bias.size = 4; });
  refused([](auto& a) { a.gate.data = const_cast<void*>(a.mean.data); });
}

}  // namespace
}  // namespace fusedsc::reference
