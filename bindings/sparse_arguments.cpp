#include "sparse_arguments.h"

#include "fusedsc/common/status.h"
#include "tensor_conversion.h"
#include "transforms.h"
#include "will_differentiate.h"

namespace fusedsc::aten {

MaxPooling sparse_pooling_of(IntArrayRef size, IntArrayRef stride) {
  return {pair_of("pool_size", size), pair_of("pool_stride", stride)};
}

SymSizes sparse_output_sizes_of(const SymSizes& x, const Tensor& weight, const Window& window, std::int64_t groups,
                                const MaxPooling& pooling) {
  check(groups > 0, "groups: it is ", groups, "; it must be at least 1");
  check(x[1] % groups == 0, "groups: it is ", groups, ", which must divide the ", x[1], " channels of x");
  check(weight.sym_size(0) % groups == 0, "groups: it is ", groups, ", which must divide the ", weight.sym_size(0),
        " output channels of weight");
  const SymSizes of_group{x[0], x[1] / groups, x[2], x[3]};
  SymSizes sizes = conv_output_sizes(of_group, weight.sym_sizes(), window);
  if (!pooling) return sizes;
  for (const std::size_t axis : {0, 1}) {
    const std::int64_t size = pooling.size[axis], stride = pooling.stride[axis];
    check(size > 0, "pool_size: it is ", size, "; it must be at least 1");
    check(stride > 0, "pool_stride: it is ", stride, "; it must be at least 1");
    check(sizes[2 + axis] >= size, "pool_size: it is ", size, ", larger than the convolution's result of ",
          sizes[2 + axis]);
    sizes[2 + axis] = (sizes[2 + axis] - size) / stride + 1;
  }
  return sizes;
}

c10::SymInt packed_weight_size(const Tensor& weight, std::int64_t groups) {
  const c10::SymInt blocks = (weight.sym_size(0) / groups + (kPackedOutputs - 1)) / kPackedOutputs;
  return groups * blocks * kPackedOutputs * weight.sym_size(1) * weight.sym_size(2) * weight.sym_size(3);
}

void check_packed_weight(const OptionalTensor& packed, const Tensor& x, const Tensor& weight, std::int64_t groups) {
  if (!packed) return;
  check(packed->dim() == 1 && packed->sym_size(0) == packed_weight_size(weight, groups) &&
            packed->scalar_type() == accumulation_type(x.scalar_type()),
        "packed: its sizes are ", packed->sym_sizes(), " of ", packed->scalar_type(),
        "; give what fusedsc.sparse.pack_weight(weight, groups) returns for this weight");
  check(packed->device() == x.device(), "packed: it is on ", packed->device(), ", but x is on ", x.device(),
        "; move one of them with .to(device)");
}

SparseArguments sparse_arguments(const Tensor& weight, const Tensor& bias, const Window& window, std::int64_t groups,
                                 std::string_view activation, const MaxPooling& pooling, const Tensor& packed,
                                 std::string_view config) {
  SparseArguments arguments;
  arguments.weight = view(weight);
  arguments.packed = channels(packed);
  arguments.bias = channels(bias);
  arguments.groups = groups;
  arguments.window = window;
  arguments.activation = activation_from_name(std::string(activation));
  arguments.pooling = pooling;
  arguments.config = config;
  return arguments;
}

void refuse_gradient(const char* op, const char* dense, const Tensor& x, const Tensor& weight,
                     const OptionalTensor& bias) {
  refuse_transforms(op, x, weight, bias);
  if (!will_differentiate(x, weight, bias)) return;
  const char* name = requires_grad(x) ? "x" : requires_grad(weight) ? "weight" : "bias";
  throw InvalidArgument(c10::str(name, ": it requires a gradient, but ", op,
                                 " is for inference and has none; call it under torch.no_grad(), or take ", dense));
}

}  // namespace fusedsc::aten
