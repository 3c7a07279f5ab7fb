/// What is stored in 16 bits is rounded to nearest, ties to even: other rules drift over a training run.
#include "ops/depthwise_cases.h"
#include "ops/each_target.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {
namespace {

/// A sum halfway between two numbers of the type, and the even one of them.
struct Tie {
  double first, second, even;
};

void verify_ties(DataType dtype, double unit, Memory memory) {
  // `unit` is the distance from 1 to the next number.
  const Tie kTies[] = {{1, unit / 2, 1}, {1 + unit, unit / 2, 1 + 2 * unit}, {-1 - unit, -unit / 2, -1 - 2 * unit}};
  const DepthwiseGeometry geometry{{1, 21, 2, 5}, {{1, 1}, {1, 1}, {1, 1}, {}}};
  const ForwardCase<DepthwiseGeometry> problem{dtype, geometry, {.bias = true}, Memories::all(memory)};
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  Array x(geometry.x), weight(geometry.weight_sizes()), expected(geometry.x);
  Vector bias(21);
  for (Bounded& one : weight.elements) one.value = 1;
  for_each_index(x.sizes, [&](auto n, auto c, auto h, auto w) {
    const Tie& tie = kTies[c % 3];
    x.at(n, c, h, w).value = tie.first;
    bias[static_cast<std::size_t>(c)].value = tie.second;
    expected.at(n, c, h, w).value = tie.even;
  });
  tensors.x.fill(x);
  tensors.weight.fill(weight);
  tensors.bias.fill(bias);
  run(DepthwiseGeometry::kForward, tensors.arguments(problem));
  const Array y = tensors.y.values();
  for (std::size_t i = 0; i < y.elements.size(); ++i) {
    ASSERT_EQ(y.elements[i].value, expected.elements[i].value) << name_of(dtype) << ", " << name_of(memory);
  }
}

class Rounding : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, Rounding, EachTarget::all(), EachTarget::name);

TEST_P(Rounding, TiesGoToEven) {
  for (const Memory memory : kOutputMemories) {
    verify_ties(DataType::float16, 0x1p-10, memory);
    verify_ties(DataType::bfloat16, 0x1p-7, memory);
  }
}

}  // namespace
}  // namespace fusedsc::reference
