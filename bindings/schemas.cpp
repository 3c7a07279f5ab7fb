/// The operators' schemas. Kernels are registered in torch_<op>.cpp, gradients in autograd_<op>.cpp.
///
/// Names without an underscore are public. `padding` is one number, (vertical, horizontal) or (left, right, top,
/// bottom). The fused blocks update running statistics, so they are compositions of a functional core (`_<op>_forward`,
/// which autograd, fake tensors and torch.compile see) and ordinary in-place operators.
#include <torch/library.h>

TORCH_LIBRARY(fusedsc, m) {
  m.set_python_module("fusedsc");
  const auto def = [&m](const char* schema) { m.def(schema, {at::Tag::pt2_compliant_tag}); };

  def("depthwise_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[4] padding=0, "
      "int[2] dilation=1) -> Tensor");
  def("depthwise_conv2d_backward(Tensor grad_y, Tensor x, Tensor weight, int[2] stride, int[4] padding, "
      "int[2] dilation, bool[3] output_mask) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)");

  def("pointwise_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int groups=1) -> Tensor");
  def("pointwise_conv2d_backward(Tensor grad_y, Tensor x, Tensor weight, int groups, bool[3] output_mask) "
      "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)");

  def("sliding_channel_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int groups=2, float overlap=0.5) -> Tensor");
  def("sliding_channel_conv2d_backward(Tensor grad_y, Tensor x, Tensor weight, int groups, float overlap, "
      "bool[3] output_mask) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)");

  // activation(convolution(prologue(scale*x + shift)) + bias) of a depthwise or 1x1 convolution: both activations by
  // name, scale and shift one per channel of x, of any floating dtype, or None for 1 and 0. Zeros are padded behind the
  // prologue. Without gradients.
  def("_prologue_conv2d(Tensor x, Tensor? scale, Tensor? shift, str prologue, Tensor weight, Tensor? bias, "
      "int[2] stride, int[4] padding, int[2] dilation, int groups, str activation) -> Tensor");

  // Without gradients. `packed`: what _pack_sparse_weight makes of the weight, for calls that share it; else each makes
  // it anew. pecr_conv2d has ReLU behind the convolution, and then the greatest value of each window. `config`: the
  // kernel and config that the call asks for (fusedsc/forward/sparse.h).
  def("ecr_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[4] padding=0, int[2] dilation=1, "
      "int groups=1, str activation=\"identity\", Tensor? packed=None, str config=\"\") -> Tensor");
  def("pecr_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[4] padding=0, int[2] pool_size=2, "
      "int[2] pool_stride=2, int[2] dilation=1, int groups=1, Tensor? packed=None, str config=\"\") -> Tensor");
  def("_pack_sparse_weight(Tensor weight, int groups) -> Tensor");
  // What `config` may be for a call: the registry's own first, then what it would try next, `most` in all.
  def("_sparse_configs(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[4] padding, int[2] dilation, "
      "int groups, str activation, int[2] pool_size, int[2] pool_stride, Tensor? packed, int most) -> str[]");
  // The same where x, or the result, is a compressed map: [N, H, W, C'] each, with C' = C rounded up to 32; counts are
  // of 8 channels each. x is dense where it has neither channels nor counts. Pooling of one by one is none.
  def("_sparse_conv2d_from_compressed(Tensor values, Tensor channels, Tensor counts, Tensor weight, Tensor? bias, "
      "int[2] stride, int[4] padding, int[2] dilation, int groups, str activation, int[2] pool_size, "
      "int[2] pool_stride, Tensor? packed, bool channels_last, str config=\"\") -> Tensor");
  def("_sparse_conv2d_to_compressed(Tensor x, Tensor? channels, Tensor? counts, Tensor weight, Tensor? bias, "
      "int[2] stride, int[4] padding, int[2] dilation, int groups, str activation, int[2] pool_size, "
      "int[2] pool_stride, Tensor? packed, str config=\"\") -> (Tensor values, Tensor channels, Tensor counts)");

  def("dsc_block(Tensor x, Tensor dw_weight, Tensor? bn_weight, Tensor? bn_bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, Tensor pw_weight, *, Tensor? dw_bias=None, Tensor? pw_bias=None, bool training, "
      "float? momentum=0.1, Tensor(c!)? num_batches_tracked=None, float eps=1e-05, str activation=\"relu6\", "
      "int[2] stride=1, int[4] padding=1, int[2] dilation=1, bool? recompute=None, int groups=1, "
      "float? overlap=None) -> Tensor");
  // `statistics` has the rows mean, 1/sqrt(var + eps), unbiased variance, and the scale and shift that follow, of [C*m]
  // each. Given: normalise with it, and return an empty one; its first two rows will do, and with all of them forward
  // looks at neither bn_weight nor bn_bias. None: take the batch's, and return it.
  // `d`, the raw depthwise output, is empty where `recompute` says not to store it.
  def("_dsc_block_forward(Tensor x, Tensor dw_weight, Tensor? dw_bias, Tensor? bn_weight, Tensor? bn_bias, "
      "Tensor pw_weight, Tensor? pw_bias, Tensor? statistics, float eps, str activation, int[2] stride, "
      "int[4] padding, int[2] dilation, bool? recompute, int groups=1, float? overlap=None) "
      "-> (Tensor y, Tensor statistics, Tensor d)");
  def("_dsc_block_backward(Tensor grad_y, Tensor x, Tensor dw_weight, Tensor? dw_bias, Tensor? bn_weight, "
      "Tensor? bn_bias, Tensor pw_weight, Tensor statistics, Tensor d, bool training, str activation, int[2] stride, "
      "int[4] padding, int[2] dilation, bool? recompute, bool[7] output_mask, int groups=1, "
      "float? overlap=None, float eps=1e-05) -> (Tensor grad_x, "
      "Tensor grad_dw_weight, Tensor grad_dw_bias, Tensor grad_bn_weight, Tensor grad_bn_bias, "
      "Tensor grad_pw_weight, Tensor grad_pw_bias)");

  def("conv_bn_act(Tensor x, Tensor weight, Tensor? bn_weight, Tensor? bn_bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, *, bool training, float? momentum=0.1, Tensor(c!)? num_batches_tracked=None, "
      "float eps=1e-05, str activation=\"relu6\", int[2] stride=1, int[4] padding=0, int[2] dilation=1) -> Tensor");
  // `statistics` as above; what is returned has neither scale nor shift.
  def("_conv_bn_act_forward(Tensor x, Tensor weight, Tensor? bn_weight, Tensor? bn_bias, Tensor? statistics, float "
      "eps, "
      "str activation, int[2] stride, int[4] padding, int[2] dilation) -> (Tensor y, Tensor statistics)");
  def("_conv_bn_act_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bn_weight, Tensor? bn_bias, "
      "Tensor statistics, bool training, str activation, int[2] stride, int[4] padding, int[2] dilation, "
      "bool[4] output_mask) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bn_weight, Tensor grad_bn_bias)");

  // Each `*_bn` is [weight, bias, running_mean, running_var, num_batches_tracked]; `momentum` and `eps` are one number,
  // or one per BatchNorm in the order expand, dw, project. With `se_reduce_weight` there is squeeze-excite behind the
  // depthwise convolution.
  def("inverted_residual(Tensor x, Tensor? expand_weight, Tensor(a!)?[] expand_bn, Tensor dw_weight, "
      "Tensor(b!)?[] dw_bn, Tensor project_weight, Tensor(c!)?[] project_bn, *, bool training, "
      "float[]? momentum, float[] eps, str activation=\"relu6\", int[2] stride=1, int[4] padding=1, "
      "int[2] dilation=1, bool residual=False, bool? recompute=None, Tensor? se_reduce_weight=None, "
      "Tensor? se_reduce_bias=None, Tensor? se_expand_weight=None, Tensor? se_expand_bias=None, "
      "str se_activation=\"relu\", str se_gate=\"hardsigmoid\") -> Tensor");
  // Without squeeze-excite it is a chain (below); with it: `bn_parameters` is [weight, bias] of expand, dw and project
  // in turn; `statistics` is as above, with the channels of the three BatchNorms (of two, without expansion) side by
  // side. e, d and p are the raw convolution outputs. `se_parameters` is [weight, bias] of its two convolutions.
  // `mean`, `hidden` and `logits` are matrices with a row per image: what is squeezed, and either convolution's result;
  // z is what the projection reads. All but y and the statistics are empty with `recompute`; given to backward
  // together, as `stored`.
  def("_gated_residual_forward(Tensor x, Tensor? expand_weight, Tensor dw_weight, Tensor project_weight, "
      "Tensor?[] bn_parameters, Tensor?[] se_parameters, Tensor? statistics, float[] eps, str activation, "
      "str se_activation, str se_gate, int[2] stride, int[4] padding, int[2] dilation, bool residual, bool recompute, "
      "bool repeats=False) "
      "-> (Tensor y, Tensor statistics, Tensor mean, Tensor hidden, Tensor logits, Tensor e, Tensor d, Tensor z, "
      "Tensor p)");
  def("_gated_residual_backward(Tensor grad_y, Tensor x, Tensor? expand_weight, Tensor dw_weight, "
      "Tensor project_weight, Tensor?[] bn_parameters, Tensor?[] se_parameters, Tensor statistics, Tensor[] stored, "
      "bool training, str activation, str se_activation, str se_gate, int[2] stride, int[4] padding, "
      "int[2] dilation, bool residual, bool[14] output_mask) -> (Tensor grad_x, Tensor grad_expand_weight, "
      "Tensor grad_dw_weight, Tensor grad_project_weight, Tensor grad_expand_bn_weight, Tensor grad_expand_bn_bias, "
      "Tensor grad_dw_bn_weight, Tensor grad_dw_bn_bias, Tensor grad_project_bn_weight, Tensor grad_project_bn_bias, "
      "Tensor grad_se_reduce_weight, Tensor grad_se_reduce_bias, Tensor grad_se_expand_weight, "
      "Tensor grad_se_expand_bias)");

  // A chain of depthwise convolutions (as many groups as input channels) and 1x1 convolutions (one group). The lists
  // have an element for each of them; `bns` five: weight, bias, running_mean, running_var, num_batches_tracked; strides
  // and dilations two; paddings four (left, right, top, bottom). A momentum that is NaN is the cumulative average.
  // In training statistics are taken over the `sync_size` processes of the group of that name, where there is one.
  def("conv_chain(Tensor x, Tensor[] weights, Tensor?[] biases, bool[] has_bn, Tensor(a!)?[] bns, *, bool training, "
      "float[] momenta, float[] eps, str[] activations, int[] strides, int[] paddings, int[] dilations, int[] groups, "
      "bool residual=False, Tensor? branch_scale=None, str input_activation=\"identity\", bool? recompute=None, str? "
      "sync_group=None, int sync_size=1) "
      "-> Tensor");
  // The same, of what does not change from call to call under the number that _keep_conv_chain gave it, in this process
  // only: nothing for a graph. `convolutions` has each one's weight and bias.
  def("_keep_conv_chain(bool[] has_bn, str[] activations, int[] strides, int[] paddings, int[] dilations, "
      "int[] groups, bool residual, str input_activation) -> int");
  def("_conv_chain_kept(Tensor x, Tensor?[] convolutions, Tensor(a!)?[] bns, int chain, bool training, "
      "float[] momenta, float[] eps, Tensor? branch_scale=None, bool? recompute=None, str? sync_group=None, "
      "int sync_size=1) -> Tensor");
  // `bn_parameters` is [weight, bias] for each convolution; `statistics` is as above, with the channels of all
  // BatchNorms side by side. Weights and biases may have another dtype than x: they are cast. `raw` are the
  // convolutions' results that backward reads, and, last, what was cast, side by side, if anything was; none with
  // `recompute`, which computes them again later.
  def("_conv_chain_forward(Tensor x, Tensor[] weights, Tensor?[] biases, bool[] has_bn, Tensor?[] bn_parameters, "
      "Tensor? statistics, float[] eps, str[] activations, int[] strides, int[] paddings, int[] dilations, "
      "int[] groups, bool residual, Tensor? branch_scale, str input_activation, bool recompute, str? sync_group=None, "
      "int sync_size=1, bool repeats=False) "
      "-> (Tensor y, Tensor statistics, Tensor[] raw)");
  // The gradients that `output_mask` asks for: of x, then of each convolution's weight, bias, and BatchNorm's weight
  // and bias. Those of parameters share memory, in which none overlaps another.
  def("_conv_chain_backward(Tensor grad_y, Tensor x, Tensor[] weights, Tensor?[] biases, bool[] has_bn, "
      "Tensor?[] bn_parameters, Tensor statistics, Tensor[] raw, bool training, str[] activations, int[] strides, "
      "int[] paddings, int[] dilations, int[] groups, bool residual, Tensor? branch_scale, str input_activation, "
      "bool[] output_mask, str? sync_group=None, int sync_size=1) -> Tensor[]");

  // The `statistics`, all five rows, of BatchNorms in eval mode; each of them is [weight, bias, running_mean,
  // running_var], of any floating dtypes or None, in `batch_norms`, and has its eps. In float64 or float32; said by a
  // bool, since AOTInductor hands on dtypes by numbers that mean others here. Without gradients.
  def("_fold_batch_norms(Tensor?[] batch_norms, float[] eps, bool is_double) -> Tensor");

  // Copies in another dtype, given by its name for the same reason, made together.
  def("_cast(Tensor[] tensors, str dtype) -> Tensor[]");
  // The same, but for the last: a weight of a sliding-channel convolution of so many channels becomes the pointwise one
  // that convolves alike, with zeros outside of the windows; or, with `gathers`, what is in the windows of such a one.
  def("_cast_sliding(Tensor[] tensors, str dtype, int channels, int groups, float overlap, bool gathers) "
      "-> Tensor[]");

  // A copy that is channels_last, or contiguous. Its gradient has the layout of x.
  def("_change_layout(Tensor x, bool channels_last) -> Tensor");

  // The torch it is built for, the instruction sets that this machine's CPU can run (best first), the vendor of the
  // GPUs that kernels are built for ("cuda", "hip" or none) and their architectures.
  def("_build_info() -> (str torch, str[] cpu_targets, str gpu, str gpu_architectures)");

  // For the arguments of the operator of that name: each implementation or kernel, why it cannot run (empty where it
  // can), and of the one that is taken its config and why it is taken (empty: it is not).
  def("_explain_depthwise_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[4] padding=0, "
      "int[2] dilation=1) -> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_pointwise_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int groups=1) "
      "-> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_sliding_channel_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int groups=2, float overlap=0.5) "
      "-> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_ecr_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[4] padding=0, "
      "int[2] dilation=1, int groups=1, str activation=\"identity\", Tensor? packed=None, str config=\"\") "
      "-> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_pecr_conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[4] padding=0, "
      "int[2] pool_size=2, int[2] pool_stride=2, int[2] dilation=1, int groups=1, Tensor? packed=None, str "
      "config=\"\") "
      "-> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_dsc_block(Tensor x, Tensor dw_weight, Tensor? bn_weight, Tensor? bn_bias, Tensor? running_mean, "
      "Tensor? running_var, Tensor pw_weight, *, Tensor? dw_bias=None, Tensor? pw_bias=None, bool training, "
      "float? momentum=0.1, Tensor? num_batches_tracked=None, float eps=1e-05, str activation=\"relu6\", "
      "int[2] stride=1, int[4] padding=1, int[2] dilation=1, bool? recompute=None, int groups=1, "
      "float? overlap=None) -> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_conv_bn_act(Tensor x, Tensor weight, Tensor? bn_weight, Tensor? bn_bias, Tensor? running_mean, "
      "Tensor? running_var, *, bool training, float? momentum=0.1, Tensor? num_batches_tracked=None, "
      "float eps=1e-05, str activation=\"relu6\", int[2] stride=1, int[4] padding=0, int[2] dilation=1) "
      "-> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
  def("_explain_inverted_residual(Tensor x, Tensor? expand_weight, Tensor?[] expand_bn, Tensor dw_weight, "
      "Tensor?[] dw_bn, Tensor project_weight, Tensor?[] project_bn, *, bool training, float[]? momentum, "
      "float[] eps, str activation=\"relu6\", int[2] stride=1, int[4] padding=1, int[2] dilation=1, "
      "bool residual=False, bool? recompute=None, Tensor? se_reduce_weight=None, Tensor? se_reduce_bias=None, "
      "Tensor? se_expand_weight=None, Tensor? se_expand_bias=None, str se_activation=\"relu\", "
      "str se_gate=\"hardsigmoid\") -> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] "
      "why)");
  def("_explain_conv_chain(Tensor x, Tensor[] weights, Tensor?[] biases, bool[] has_bn, Tensor?[] bns, *, "
      "bool training, float[] momenta, float[] eps, str[] activations, int[] strides, int[] paddings, "
      "int[] dilations, int[] groups, bool residual=False, Tensor? branch_scale=None, "
      "str input_activation=\"identity\", bool? recompute=None, str? sync_group=None, int sync_size=1) "
      "-> (str[] direction, str[] implementation, str[] why_not, str[] config, str[] why)");
}
