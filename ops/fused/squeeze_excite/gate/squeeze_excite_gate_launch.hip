#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/squeeze_excite/gate/squeeze_excite_gate_gpu.h"
#include "fusedsc/fused/squeeze_excite/gate/squeeze_excite_gate_kernel.h"

namespace fusedsc::gpu {
namespace {

template <class T, class From, class To, int kVector>
FUSEDSC_KERNEL(kGateThreads, 1)
gate_layer_kernel(GateLayerParameters parameters) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  gate_layer<T, From, To, kVector>(parameters);
}

using Kernel = void (*)(GateLayerParameters);

/// Both layers' kernels, for rows that can be read in vectors and for others.
struct GateKernels {
  Kernel reduce_vectors, reduce, expand_vectors, expand;
};

template <class T>
constexpr GateKernels kernels_of() {
  using A = Accumulator<T>;
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  return {gate_layer_kernel<T, T, A, kVector>, gate_layer_kernel<T, T, A, 1>, gate_layer_kernel<T, A, T, kVector>,
          gate_layer_kernel<T, A, T, 1>};
}

GateKernels kernels_of(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return kernels_of<float>();
    case DataType::float64: return kernels_of<double>();
    case DataType::float16: return kernels_of<Float16>();
    case DataType::bfloat16: return kernels_of<BFloat16>();
  }
  return {};
}

bool is_in_vectors(const ConstTensorView& weight, const ConstTensorView& x) {
  const auto is_aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  return weight.sizes[1] * static_cast<std::int64_t>(size_of(weight.dtype)) % 16 == 0 && is_aligned(weight.data) &&
         is_aligned(x.data);
}

void launch_layer(Kernel kernel, const ConstTensorView& x, const ConstTensorView& weight,
                  const ConstChannelVector& bias, const TensorView& y, GateLayerParameters p, void* stream) {
  p.x = x.data;
  p.weight = weight.data;
  p.bias = bias.data;
  p.y = y.data;
  p.images = static_cast<int>(x.sizes[0]);
  p.inputs = static_cast<int>(weight.sizes[1]);
  p.outputs = static_cast<int>(weight.sizes[0]);
  const std::int64_t image_groups = divide_up(p.images, kGateImages);
  p.by_image_groups = Divisor(static_cast<std::uint32_t>(image_groups));
  launch_following("squeeze_excite_gate", kernel, divide_up(p.outputs, kGateOutputs) * image_groups, kGateThreads,
                   stream, p);
}

}  // namespace

void squeeze_excite_gate(const SqueezeExciteGateArguments& a, void* stream) {
  if (a.mean.elements() == 0) return;
  const GateKernels kernels = kernels_of(a.mean.dtype);
  GateLayerParameters p;
  p.activation = a.activation;
  p.function = a.function;
  launch_layer(is_in_vectors(a.reduce_weight, a.mean) ? kernels.reduce_vectors : kernels.reduce, a.mean,
               a.reduce_weight, a.reduce_bias, a.hidden, p, stream);
  p.is_gate = true;
  launch_layer(is_in_vectors(a.expand_weight, a.hidden) ? kernels.expand_vectors : kernels.expand, a.hidden,
               a.expand_weight, a.expand_bias, a.gate, p, stream);
}

}  // namespace fusedsc::gpu
