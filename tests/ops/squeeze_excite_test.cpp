#include "ops/squeeze_excite_cases.h"

#include "ops/each_target.h"
#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

class SqueezeExcite : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, SqueezeExcite, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SqueezeExcite, Squeeze) { for_each_case(squeeze_excite_cases(GetParam()), verify_squeeze); }
TEST_P(SqueezeExcite, Excite) { for_each_case(squeeze_excite_cases(GetParam()), verify_excite); }
TEST_P(SqueezeExcite, ExciteBackward) { for_each_case(squeeze_excite_cases(GetParam()), verify_excite_backward); }
TEST_P(SqueezeExcite, SqueezeBackward) { for_each_case(squeeze_excite_cases(GetParam()), verify_squeeze_backward); }
TEST_P(SqueezeExcite, EmptyBatch) { verify_empty_squeeze_excite(GetParam()); }

class SqueezeExciteTargets : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, SqueezeExciteTargets, EachTarget::all(), EachTarget::name);

TEST_P(SqueezeExciteTargets, AllPasses) {
  for (const DataType dtype : kDataTypes) {
    const std::vector<SqueezeExciteCase> cases = squeeze_excite_cases(dtype);
    for_some_cases(cases, verify_squeeze);
    for_some_cases(cases, verify_excite);
    for_some_cases(cases, verify_excite_backward);
    for_some_cases(cases, verify_squeeze_backward);
  }
}

// ------------------------------------------------------------------------------------------------------------ mistakes

const SqueezeExciteCase kRight{DataType::float32, {2, 8, 6, 7}, Activation::relu, {}};

/// What all passes refuse alike.
template <class Arguments>
void verify_mistakes_of_x(const Operator<Arguments>& op, const Arguments& right) {
  verify_mistakes(op, right,
                  {
                      {"x", [](Arguments& a) { a.x.data = nullptr; }},
                      {"x", [](Arguments& a) { a.x.strides[0] = -1; }},
                      {"x", [](Arguments& a) { a.x.sizes[0] = -2; }},
                      {"x", [](Arguments& a) { a.x.sizes[2] = 0; }},
                      {"scale", [](Arguments& a) { a.scale = {}; }},
                      {"scale", [](Arguments& a) { a.scale.size += 1; }},
                      {"shift", [](Arguments& a) { a.shift.size -= 1; }},
                      {"shift", [](Arguments& a) { a.shift.dtype = DataType::float64; }},
                  });
  verify_execution(op, right);
}

TEST(SqueezeExciteChecks, Squeeze) {
  using Arguments = SqueezeArguments;
  SqueezeExciteTensors tensors(kRight);
  Tensor mean(kRight.dtype, tensors.gate.sizes());
  auto right = tensors.arguments<Arguments>();
  right.mean = mean;
  verify_mistakes_of_x(kSqueeze, right);
  verify_mistakes(kSqueeze, right,
                  {
                      {"mean", [](Arguments& a) { a.mean.data = nullptr; }},
                      {"mean", [](Arguments& a) { a.mean.sizes[1] += 1; }},
                      {"mean", [](Arguments& a) { a.mean.sizes[2] = 6; }},
                      {"mean", [](Arguments& a) { a.mean.dtype = DataType::float64; }},
                      {"mean", [](Arguments& a) { a.mean.strides[0] = 0; }},
                      {"mean", [](Arguments& a) { a.mean.device = Device::gpu; }},
                      {"mean", [](Arguments& a) { a.mean.data = inside(a.x.data); }},
                      {"mean", [](Arguments& a) { a.mean.data = inside(a.scale.data); }},
                  });
}

TEST(SqueezeExciteChecks, Excite) {
  using Arguments = ExciteArguments;
  SqueezeExciteTensors tensors(kRight);
  Tensor out(kRight.dtype, kRight.sizes);
  auto right = tensors.arguments<Arguments>();
  right.out = out;
  verify_mistakes_of_x(kExcite, right);
  verify_mistakes(kExcite, right,
                  {
                      {"gate", [](Arguments& a) { a.gate.data = nullptr; }},
                      {"gate", [](Arguments& a) { a.gate.sizes[3] = 7; }},
                      {"gate", [](Arguments& a) { a.gate.dtype = DataType::float16; }},
                      {"out", [](Arguments& a) { a.out.data = nullptr; }},
                      {"out", [](Arguments& a) { a.out.sizes[0] += 1; }},
                      {"out", [](Arguments& a) { a.out.dtype = DataType::bfloat16; }},
                      {"out", [](Arguments& a) { a.out.strides[3] = 0; }},
                      {"out", [](Arguments& a) { a.out.data = inside(a.x.data); }},
                      {"out", [](Arguments& a) { a.out.data = inside(a.gate.data); }},
                  });
}

TEST(SqueezeExciteChecks, ExciteBackward) {
  using Arguments = ExciteBackwardArguments;
  SqueezeExciteTensors tensors(kRight);
  Tensor grad_gate(kRight.dtype, tensors.gate.sizes());
  auto right = tensors.arguments<Arguments>();
  right.grad_gate = grad_gate;
  verify_mistakes_of_x(kExciteBackward, right);
  verify_mistakes(kExciteBackward, right,
                  {
                      {"grad_out", [](Arguments& a) { a.grad_out.data = nullptr; }},
                      {"grad_out", [](Arguments& a) { a.grad_out.sizes[1] -= 1; }},
                      {"grad_out", [](Arguments& a) { a.grad_out.dtype = DataType::float64; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.data = nullptr; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.sizes[0] += 1; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.dtype = DataType::float16; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.strides[1] = 0; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.data = inside(a.grad_out.data); }},
                  });
}

TEST(SqueezeExciteChecks, SqueezeBackward) {
  using Arguments = SqueezeBackwardArguments;
  SqueezeExciteTensors tensors(kRight);
  Tensor grad(kRight.dtype, kRight.sizes);
  Channels mean(kRight.dtype, kRight.sizes[1]), sum(mean), centered(mean);
  auto right = tensors.arguments<Arguments>();
  right.grad = grad;
  right.sums = {mean, sum, centered};
  verify_mistakes_of_x(kSqueezeBackward, right);
  verify_mistakes(kSqueezeBackward, right,
                  {
                      {"grad_out", [](Arguments& a) { a.grad_out.data = nullptr; }},
                      {"grad_out", [](Arguments& a) { a.grad_out.sizes[1] -= 1; }},
                      {"gate", [](Arguments& a) { a.gate.data = nullptr; }},
                      {"gate", [](Arguments& a) { a.gate.sizes[1] += 1; }},
                      {"grad_mean", [](Arguments& a) { a.grad_mean.data = nullptr; }},
                      {"grad_mean", [](Arguments& a) { a.grad_mean.dtype = DataType::float64; }},
                      {"grad", [](Arguments& a) { a.grad.data = nullptr; }},
                      {"grad", [](Arguments& a) { a.grad.sizes[3] += 1; }},
                      {"grad", [](Arguments& a) { a.grad.strides[2] = 0; }},
                      {"grad", [](Arguments& a) { a.grad.data = inside(a.x.data); }},
                      {"grad", [](Arguments& a) { a.grad.data = inside(a.grad_out.data); }},
                      {"grad",  // its elements lie elsewhere than those of grad_out
                       [](Arguments& a) {
                         a.grad.data = const_cast<void*>(a.grad_out.data);
                         a.grad.strides = dense_strides(a.grad.sizes, Layout::channels_last);
                       }},
                      {"sums", [](Arguments& a) { a.sums = {}; }},
                      {"sums.mean", [](Arguments& a) { a.sums.mean = {}; }},
                      {"sums.grad", [](Arguments& a) { a.sums.grad.size += 1; }},
                      {"sums.grad_times_centered", [](Arguments& a) { a.sums.grad_times_centered = {}; }},
                  });
}

}  // namespace
}  // namespace fusedsc::reference
