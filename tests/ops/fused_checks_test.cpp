/// Every argument of the fused blocks that is wrong is refused by a sentence that begins with its name.
#include "fusedsc/fused/batch_norm_affine.h"
#include "ops/dsc_block_tensors.h"
#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

/// What forward and backward of the fused block refuse alike.
template <class Arguments>
Mistakes<Arguments> block_mistakes() {
  return {
      {"x", [](Arguments& a) { a.x.data = nullptr; }},
      {"x", [](Arguments& a) { a.x.strides[0] = -1; }},
      {"dw_weight", [](Arguments& a) { a.dw_weight.data = nullptr; }},
      {"dw_weight", [](Arguments& a) { a.dw_weight.dtype = DataType::float64; }},
      {"pw_weight", [](Arguments& a) { a.pw_weight.data = nullptr; }},
      {"pw_weight", [](Arguments& a) { a.pw_weight.dtype = DataType::float64; }},
      {"dw_bias", [](Arguments& a) { a.dw_bias.size += 1; }},
      {"stride", [](Arguments& a) { a.window.stride[0] = 0; }},
      {"bn_weight", [](Arguments& a) { a.bn_weight.size += 1; }},
      {"bn_bias", [](Arguments& a) { a.bn_bias.dtype = DataType::float16; }},
      {"mean", [](Arguments& a) { a.mean = {}; }},
      {"invstd", [](Arguments& a) { a.invstd.size += 1; }},
      {"d", [](Arguments& a) { a.d.sizes[2] += 1; }},
      {"d", [](Arguments& a) { a.d.dtype = DataType::float64; }},
  };
}

DscBlockCase right_block() {
  DscBlockCase block;
  block.depthwise = {{2, 8, 6, 7}, {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}}};
  block.outputs = 12;
  block.biases = block.stores_d = block.stores_grad_bn = true;
  return block;
}

TEST(FusedChecks, DscBlock) {
  using Arguments = DscBlockArguments;
  constexpr Operator<Arguments> kForward{dsc_block, dsc_block_workspace_bytes};
  DscBlockForward tensors(right_block());
  const Arguments right = tensors.arguments(right_block());
  verify_mistakes(kForward, right, block_mistakes<Arguments>());
  verify_mistakes(kForward, right,
                  {
                      {"pw_bias", [](Arguments& a) { a.pw_bias.size += 1; }},
                      {"eps", [](Arguments& a) { a.eps = -1; }},
                      {"variance", [](Arguments& a) { a.variance.size += 1; }},
                      {"y", [](Arguments& a) { a.y.data = nullptr; }},
                      {"y", [](Arguments& a) { a.y.sizes[1] += 1; }},
                      {"y", [](Arguments& a) { a.y.strides[3] = 0; }},
                      {"y", [](Arguments& a) { a.y.data = inside(a.x.data); }},
                      {"d", [](Arguments& a) { a.d.data = inside(a.x.data); }},
                      {"mean", [](Arguments& a) { a.mean.data = inside(a.x.data); }},
                      {"invstd", [](Arguments& a) { a.invstd.data = inside(a.bn_weight.data); }},
                  });
  verify_execution(kForward, right);
}

TEST(FusedChecks, DscBlockBackward) {
  using Arguments = DscBlockBackwardArguments;
  constexpr Operator<Arguments> kBackward{dsc_block_backward, dsc_block_backward_workspace_bytes};
  DscBlockBackward tensors(right_block());
  const Arguments right = tensors.arguments(right_block());
  verify_mistakes(kBackward, right, block_mistakes<Arguments>());
  verify_mistakes(kBackward, right,
                  {
                      {"grad_y", [](Arguments& a) { a.grad_y.data = nullptr; }},
                      {"grad_y", [](Arguments& a) { a.grad_y.sizes[1] += 1; }},
                      {"grad_y", [](Arguments& a) { a.grad_y.dtype = DataType::bfloat16; }},
                      {"grad_bn", [](Arguments& a) { a.grad_bn.sizes[3] += 1; }},
                      {"grad_bn", [](Arguments& a) { a.grad_bn.data = inside(a.d.data); }},
                      {"grad_x", [](Arguments& a) { a.grad_x.sizes[0] += 1; }},
                      {"grad_x", [](Arguments& a) { a.grad_x.data = inside(a.grad_y.data); }},
                      {"grad_dw_weight", [](Arguments& a) { a.grad_dw_weight.sizes[0] += 1; }},
                      {"grad_pw_weight", [](Arguments& a) { a.grad_pw_weight.dtype = DataType::float16; }},
                      {"grad_dw_bias", [](Arguments& a) { a.grad_dw_bias.size += 1; }},
                      {"grad_pw_bias", [](Arguments& a) { a.grad_pw_bias.dtype = DataType::float64; }},
                      {"grad_bn_weight", [](Arguments& a) { a.grad_bn_weight.size += 1; }},
                      {"grad_bn_bias", [](Arguments& a) { a.grad_bn_bias.dtype = DataType::float64; }},
                  });
  verify_execution(kBackward, right);
}

/// An inverted residual with an expansion and a residual connection.
TEST(FusedChecks, BatchNormPasses) {
  Tensor x(DataType::float32, {2, 8, 6, 7}), other(x), out(x);
  Channels scale(DataType::float32, 8), shift(scale), mean(scale), grad(scale), centered(scale);
  BatchNormApplyArguments apply;
  apply.x = x;
  apply.scale = scale;
  apply.shift = shift;
  apply.residual = other;
  apply.out = out;
  using Apply = BatchNormApplyArguments;
  verify_mistakes<Apply>({batch_norm_apply, batch_norm_apply_workspace_bytes}, apply,
                         {
                             {"x", [](Apply& a) { a.x.data = nullptr; }},
                             {"scale", [](Apply& a) { a.scale.size += 1; }},
                             {"shift", [](Apply& a) { a.shift.dtype = DataType::float64; }},
                             {"scale and shift", [](Apply& a) { a.shift = {}; }},
                             {"image_scale", [](Apply& a) { a.image_scale = a.scale; }},
                             {"residual", [](Apply& a) { a.residual.sizes[0] += 1; }},
                             {"out", [](Apply& a) { a.out.data = nullptr; }},
                             {"out", [](Apply& a) { a.out.dtype = DataType::float16; }},
                             {"out", [](Apply& a) { a.out.strides[3] = 0; }},
                         });
  BatchNormReduceArguments reduce;
  reduce.x = x;
  reduce.grad_y = other;
  reduce.scale = scale;
  reduce.shift = shift;
  reduce.sums = {mean, grad, centered};
  using Reduce = BatchNormReduceArguments;
  verify_mistakes<Reduce>({batch_norm_reduce, batch_norm_reduce_workspace_bytes}, reduce,
                          {
                              {"x", [](Reduce& a) { a.x.data = nullptr; }},
                              {"grad_y", [](Reduce& a) { a.grad_y.sizes[1] += 1; }},
                              {"grad_y", [](Reduce& a) { a.grad_y.data = nullptr; }},
                              {"scale", [](Reduce& a) { a.scale.size += 1; }},
                              {"image_scale",
                               [](Reduce& a) {
                                 a.image_scale = a.scale;
                                 a.image_scale.size = 2;
                               }},
                              {"sums and grad", [](Reduce& a) { a.sums = {}; }},
                              {"grad",
                               [](Reduce& a) {
                                 a.grad = {const_cast<void*>(a.x.data), a.x.dtype, a.x.sizes, a.x.strides, a.x.device};
                               }},
                              {"sums.mean", [](Reduce& a) { a.sums.mean = {}; }},
                              {"sums.grad", [](Reduce& a) { a.sums.grad.size += 1; }},
                          });
}

}  // namespace
}  // namespace fusedsc::reference
