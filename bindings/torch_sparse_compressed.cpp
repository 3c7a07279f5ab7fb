/// Convolutions that skip zeros from and to compressed maps (fusedsc/forward/sparse.h), which fusedsc.CompressedMap
/// has: kernels for PyTorch's dispatcher, the fake ones, autograd's sentence.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "fusedsc/common/status.h"
#include "new_tensor.h"
#include "sparse_arguments.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// x where it is a compressed map; or where it is not, but for `values`.
struct SparseInput {
  const Tensor& values;
  OptionalTensor channels, counts;

  bool is_compressed() const { return channels.has_value() || counts.has_value(); }
};

c10::SymInt rounded_up(const c10::SymInt& channels) { return (channels + (kMapList - 1)) / kMapList * kMapList; }

void check_bytes(const char* name, const OptionalTensor& bytes, const Tensor& values, const c10::SymInt& last) {
  check(bytes.has_value(), name, ": it is not given; a compressed map has values, channels and counts");
  const c10::SymIntArrayRef of = values.sym_sizes();
  const SymSizes sizes{of[0], of[1], of[2], last};
  check(bytes->scalar_type() == at::kByte && bytes->sym_sizes() == c10::SymIntArrayRef(sizes), name, ": its sizes are ",
        bytes->sym_sizes(), " of ", bytes->scalar_type(), ", but must be ", c10::SymIntArrayRef(sizes),
        " of Byte, for values of ", of, "; give what an operator has made");
  check(bytes->device() == values.device(), name, ": it is on ", bytes->device(), ", but values are on ",
        values.device(), "; move one of them with .to(device)");
}

/// The map's sizes, whose channels are those of the weight.
SymSizes map_sizes(const SparseInput& x, const Tensor& weight, std::int64_t groups) {
  const c10::SymIntArrayRef given = x.values.sym_sizes();
  if (!x.is_compressed()) {
    check_activation("x", x.values);
    check_weight("weight", weight, x.values);
    return {given[0], given[1], given[2], given[3]};
  }
  check_activation("values", x.values);
  check_weight("weight", weight, x.values);
  check(groups > 0, "groups: it is ", groups, "; it must be at least 1");
  const c10::SymInt channels = weight.sym_size(1) * groups;
  check(given[3] == rounded_up(channels), "values: its sizes are ", given, "; of a compressed map of ", channels,
        " channels, as weight and groups have it, the last one must be ", rounded_up(channels));
  check_bytes("channels", x.channels, x.values, given[3]);
  check_bytes("counts", x.counts, x.values, given[3] / kMapRun);
  check(groups == 1 || weight.sym_size(1) % kMapRun == 0, "groups: it is ", groups, ", which leaves ",
        weight.sym_size(1), " channels of x to each; where x is a compressed map, give groups of a multiple of ",
        kMapRun, " channels, or x.dense()");
  return {given[0], channels, given[1], given[2]};
}

SymSizes checked_sizes(const SparseInput& x, const Tensor& weight, const OptionalTensor& bias, const Window& window,
                       std::int64_t groups, std::string_view activation, const MaxPooling& pooling,
                       const OptionalTensor& packed) {
  const SymSizes sizes = sparse_output_sizes_of(map_sizes(x, weight, groups), weight, window, groups, pooling);
  check_bias("bias", bias, x.values, sizes[1]);
  activation_from_name(std::string(activation));
  check_packed_weight(packed, x.values, weight, groups);
  return sizes;
}

ConstTensorView values_view(const Tensor& values, std::int64_t channels) {
  const ConstTensorView all = view(values);  // [N, H, W, C']
  const Sizes sizes{all.sizes[0], channels, all.sizes[1], all.sizes[2]};
  return {all.data, all.dtype, sizes, compressed_strides(sizes), all.device};
}

ConstChannelVector bytes_view(const Tensor& bytes, Device device) {
  return {bytes.const_data_ptr<std::uint8_t>(), DataType::float32, bytes.numel() / 4, device};
}

/// Of contiguous tensors, whose counts a GPU reads four at a time.
Tensor as_kernels_read(const Tensor& part) {
  const Tensor dense = part.contiguous();
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 4 == 0;
  return is_aligned ? dense : dense.clone();
}

/// Runs with `set_y`, which completes the arguments.
template <class SetY>
void run_sparse(const SparseInput& x, const Tensor& weight, const OptionalTensor& bias, const Window& window,
                std::int64_t groups, std::string_view activation, const MaxPooling& pooling,
                const OptionalTensor& packed, std::string_view config, const SetY& set_y) {
  const Tensor bias_ = vector_of(bias, x.values.scalar_type());
  // Of a packed weight nothing but the sizes is read.
  const Tensor packed_ = packed ? packed->contiguous() : Tensor(), weight_ = packed ? weight : weight.contiguous();
  SparseArguments arguments = sparse_arguments(weight_, bias_, window, groups, activation, pooling, packed_, config);
  Tensor values, channels, counts;
  if (x.is_compressed()) {
    values = as_kernels_read(x.values);
    channels = as_kernels_read(*x.channels);
    counts = as_kernels_read(*x.counts);
    arguments.x = values_view(values, weight.size(1) * groups);
    arguments.x_channels = bytes_view(channels, arguments.x.device);
    arguments.x_counts = bytes_view(counts, arguments.x.device);
  } else {
    values = addressable(x.values);
    arguments.x = view(values);
  }
  set_y(arguments);
  run(plan_sparse_conv2d, arguments, x.values);
}

Tensor from_compressed_meta(const Tensor& values, const Tensor& channels, const Tensor& counts, const Tensor& weight,
                            const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                            std::int64_t groups, std::string_view activation, IntArrayRef pool_size,
                            IntArrayRef pool_stride, const OptionalTensor& packed, bool channels_last,
                            std::string_view /*config*/) {
  const SymSizes sizes =
      checked_sizes({values, channels, counts}, weight, bias, window_of(weight, stride, padding, dilation), groups,
                    activation, sparse_pooling_of(pool_size, pool_stride), packed);
  return new_tensor(sizes, values, values.scalar_type(), memory_format_of(channels_last));
}

Tensor from_compressed_kernel(const Tensor& values, const Tensor& channels, const Tensor& counts, const Tensor& weight,
                              const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                              std::int64_t groups, std::string_view activation, IntArrayRef pool_size,
                              IntArrayRef pool_stride, const OptionalTensor& packed, bool channels_last,
                              std::string_view config) {
  const Tensor y = from_compressed_meta(values, channels, counts, weight, bias, stride, padding, dilation, groups,
                                        activation, pool_size, pool_stride, packed, channels_last, config);
  if (y.numel() == 0) return y;
  run_sparse({values, channels, counts}, weight, bias, window_of(weight, stride, padding, dilation), groups, activation,
             sparse_pooling_of(pool_size, pool_stride), packed, config,
             [&](SparseArguments& arguments) { arguments.y = mutable_view(y); });
  return y;
}

Tensors3 to_compressed_meta(const Tensor& x, const OptionalTensor& channels, const OptionalTensor& counts,
                            const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding,
                            IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                            IntArrayRef pool_size, IntArrayRef pool_stride, const OptionalTensor& packed,
                            std::string_view /*config*/) {
  const auto [n, m, h, w] =
      checked_sizes({x, channels, counts}, weight, bias, window_of(weight, stride, padding, dilation), groups,
                    activation, sparse_pooling_of(pool_size, pool_stride), packed);
  check(groups == 1 || m / groups % kMapList == 0, "groups: it is ", groups, ", which leaves ", m / groups,
        " channels of the result to each; where that becomes a compressed map, give groups of a multiple of ", kMapList,
        " channels, or leave it dense");
  const c10::SymInt last = rounded_up(m);
  const SymSizes of_values{n, h, w, last}, of_counts{n, h, w, last / kMapRun};
  return {new_tensor(of_values, x, x.scalar_type()), new_tensor(of_values, x, at::kByte),
          new_tensor(of_counts, x, at::kByte)};
}

Tensors3 to_compressed_kernel(const Tensor& x, const OptionalTensor& channels, const OptionalTensor& counts,
                              const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding,
                              IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                              IntArrayRef pool_size, IntArrayRef pool_stride, const OptionalTensor& packed,
                              std::string_view config) {
  const Tensors3 y = to_compressed_meta(x, channels, counts, weight, bias, stride, padding, dilation, groups,
                                        activation, pool_size, pool_stride, packed, config);
  const auto& [y_values, y_channels, y_counts] = y;
  if (y_values.numel() == 0) return y;
  const auto set_y = [&](SparseArguments& arguments) {
    const TensorView all = mutable_view(y_values);
    const ConstTensorView map = values_view(y_values, weight.size(0));
    arguments.y = {all.data, map.dtype, map.sizes, map.strides, map.device};
    const auto bytes = [&](const Tensor& part) {
      return ChannelVector(part.mutable_data_ptr<std::uint8_t>(), DataType::float32, part.numel() / 4, map.device);
    };
    arguments.y_channels = bytes(y_channels);
    arguments.y_counts = bytes(y_counts);
  };
  run_sparse({x, channels, counts}, weight, bias, window_of(weight, stride, padding, dilation), groups, activation,
             sparse_pooling_of(pool_size, pool_stride), packed, config, set_y);
  return y;
}

constexpr const char* kFrom = "_sparse_conv2d_from_compressed";
constexpr const char* kTo = "_sparse_conv2d_to_compressed";
constexpr const char* kDense = "torch.nn.functional.conv2d";

Tensor from_compressed_autograd(const Tensor& values, const Tensor& channels, const Tensor& counts,
                                const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride,
                                const OptionalTensor& packed, bool channels_last, std::string_view config) {
  refuse_gradient(kFrom, kDense, values, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return sparse_conv2d_from_compressed(values, channels, counts, weight, bias, stride, padding, dilation, groups,
                                       activation, pool_size, pool_stride, packed, channels_last, config);
}

Tensors3 to_compressed_autograd(const Tensor& x, const OptionalTensor& channels, const OptionalTensor& counts,
                                const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride,
                                const OptionalTensor& packed, std::string_view config) {
  refuse_gradient(kTo, kDense, x, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return sparse_conv2d_to_compressed(x, channels, counts, weight, bias, stride, padding, dilation, groups, activation,
                                     pool_size, pool_stride, packed, config);
}

void register_kernels(torch::Library& m) {
  m.impl(kFrom, translated<from_compressed_kernel>);
  m.impl(kTo, translated<to_compressed_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl(kFrom, translated<from_compressed_meta>);
  m.impl(kTo, translated<to_compressed_meta>);
}

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl(kFrom, translated<from_compressed_autograd>);
  m.impl(kTo, translated<to_compressed_autograd>);
}

}  // namespace fusedsc::aten
