#include "fusedsc/fused/squeeze_excite_gate.h"

#include <limits>

#include "fusedsc/common/checks/checks.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/squeeze_excite/gate/squeeze_excite_gate_gpu.h"

namespace fusedsc {
namespace {

/// A matrix whose elements are neighbours, row by row.
void check_matrix(const NamedTensor& tensor, std::int64_t rows, std::int64_t columns, DataType dtype) {
  check_sizes(tensor, {rows, columns, 1, 1}, "those of N images, E channels and S squeezed ones");
  check_dtype(tensor, dtype, "that of mean, or what its sums are kept in");
  const Sizes& strides = tensor.view.strides;
  check((rows <= 1 || strides[0] == columns) && (columns <= 1 || strides[1] == 1), tensor.name, ": its strides are ",
        printed(strides), "; it must be contiguous");
}

void check_arguments(const SqueezeExciteGateArguments& a) {
  const std::int64_t images = a.mean.sizes[0], channels = a.mean.sizes[1], squeezed = a.reduce_weight.sizes[0];
  const DataType dtype = a.mean.dtype;
  check_matrix({"mean", a.mean}, images, channels, dtype);
  check_matrix({"reduce_weight", a.reduce_weight}, squeezed, channels, dtype);
  check_matrix({"expand_weight", a.expand_weight}, channels, squeezed, dtype);
  check_matrix({"hidden", a.hidden}, images, squeezed, accumulation_type(dtype));
  check_matrix({"gate", a.gate}, images, channels, dtype);
  check_channels("reduce_bias", a.reduce_bias, squeezed, dtype);
  check_channels("expand_bias", a.expand_bias, channels, dtype);
  for (const NamedTensor& tensor :
       {NamedTensor{"mean", a.mean}, NamedTensor{"reduce_weight", a.reduce_weight},
        NamedTensor{"expand_weight", a.expand_weight}, NamedTensor{"hidden", a.hidden}, NamedTensor{"gate", a.gate}}) {
    check_given(tensor);
  }
  check_no_overlap({{"hidden", a.hidden}, {"gate", a.gate}}, {{"mean", a.mean},
                                                              {"reduce_weight", a.reduce_weight},
                                                              {"reduce_bias", a.reduce_bias},
                                                              {"expand_weight", a.expand_weight},
                                                              {"expand_bias", a.expand_bias}});
}

}  // namespace

std::string why_not_squeeze_excite_gate(const SqueezeExciteGateArguments& arguments) {
#ifndef FUSEDSC_GPU
  static_cast<void>(arguments);
  return "this build has no GPU kernels";
#else
  if (arguments.mean.device != Device::gpu) return "the tensors are on the CPU";
  if (arguments.mean.sizes[0] > kMostGateImages) return "there are more images than " + std::to_string(kMostGateImages);
  if (arguments.reduce_weight.elements() > std::numeric_limits<std::int32_t>::max()) return "the weights are too large";
  return "";
#endif
}

void squeeze_excite_gate(const SqueezeExciteGateArguments& arguments, const Execution& execution) {
  const std::string reason = why_not_squeeze_excite_gate(arguments);
  if (!reason.empty()) throw Unsupported("squeeze_excite_gate: " + reason);
  check_arguments(arguments);
#ifdef FUSEDSC_GPU
  gpu::squeeze_excite_gate(arguments, execution.stream);
#else
  static_cast<void>(execution);
#endif
}

}  // namespace fusedsc
