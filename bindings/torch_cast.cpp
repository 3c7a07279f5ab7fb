/// Several tensors cast at once, as autocast wants a block's weights.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <map>
#include <vector>

#include "autograd.h"
#include "dtype_names.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/cast.h"
#include "operators.h"
#include "tensor_conversion.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

bool is_known(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble;
}

/// The windows of the last tensor, where it has some.
struct Sliding {
  std::int64_t channels, groups;
  double overlap;
  bool gathers;  ///< of a pointwise weight, what is in the windows
};

/// [M, width, 1, 1] and [M, channels, 1, 1]: the weight, and the pointwise one that convolves alike.
struct SlidingSizes {
  SlidingChannels windows;
  std::vector<std::int64_t> compact, dense;

  SlidingSizes(const Tensor& tensor, const Sliding& sliding)
      : windows(sliding.channels, tensor.size(0), sliding.groups, sliding.overlap),
        compact{tensor.size(0), windows.width, 1, 1},
        dense{tensor.size(0), windows.channels, 1, 1} {
    const auto& expected = sliding.gathers ? dense : compact;
    check(tensor.sizes() == expected, "weight: its sizes are ", tensor.sizes(), ", but must be ",
          IntArrayRef(expected));
  }
};

/// As runs of elements; nothing where a tensor is none, or lies in another order than what it is cast to. One with
/// windows has its own order in either form.
CastArguments as_runs(at::TensorList tensors, const std::vector<Tensor>& results, bool slides) {
  CastArguments arguments;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& from = tensors[i];
    const bool is_sliding = slides && i + 1 == results.size();
    const bool is_alike = is_sliding ? from.is_contiguous() : from.strides() == results[i].strides();
    if (!is_known(from.scalar_type()) || !is_known(results[i].scalar_type()) || !from.is_non_overlapping_and_dense() ||
        !is_alike || from.numel() == 0 || from.device() != tensors[0].device()) {
      return {};
    }
    arguments.runs.emplace_back(elements(from), mutable_elements(results[i]));
  }
  return arguments;
}

/// By a kernel, if there is one for it.
bool is_cast_on_gpu(const CastArguments& arguments, const Tensor& tensor) {
  if (arguments.runs.empty() || !why_not_cast(arguments).empty()) return false;
  const c10::DeviceGuard guard(tensor.device());
  fusedsc::cast(arguments, execution_on(tensor.device()));
  return true;
}

std::vector<Tensor> cast_all(at::TensorList tensors, at::ScalarType dtype) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : tensors) results.push_back(at::empty_like(tensor, tensor.options().dtype(dtype)));
  if (results.empty()) return results;
  // Several times as fast as copies, whose blocks go over many elements each.
  if (tensors[0].is_cuda() && is_cast_on_gpu(as_runs(tensors, results, false), tensors[0])) return results;
  at::_foreach_copy_(results, tensors);
  return results;
}

std::vector<Tensor> cast_kernel(at::TensorList tensors, std::string_view dtype) {
  return cast_all(tensors, dtype_of(dtype));
}

/// Composed of PyTorch's operators.
Tensor expanded_or_gathered(const Tensor& tensor, at::ScalarType dtype, const SlidingSizes& sizes, bool gathers) {
  const SlidingChannels& windows = sizes.windows;
  const auto options = tensor.options().dtype(at::kLong);
  const Tensor first = at::arange(sizes.dense[0], options).remainder(windows.cycle).mul(windows.step).unsqueeze(1);
  const Tensor channels = first.add(at::arange(windows.width, options)).remainder(windows.channels);
  const Tensor rows = tensor.flatten(1).to(dtype);
  if (gathers) return rows.gather(1, channels).view(sizes.compact);
  return at::zeros({sizes.dense[0], sizes.dense[1]}, rows.options()).scatter(1, channels, rows).view(sizes.dense);
}

std::vector<Tensor> cast_sliding_kernel(at::TensorList tensors, std::string_view name, std::int64_t channels,
                                        std::int64_t groups, double overlap, bool gathers) {
  const at::ScalarType dtype = dtype_of(name);
  check(!tensors.empty(), "tensors: there are none; the last must be a weight");
  const SlidingSizes sizes(tensors.back(), {channels, groups, overlap, gathers});
  if (tensors[0].is_cuda()) {
    std::vector<Tensor> results;
    for (const Tensor& tensor : tensors.slice(0, tensors.size() - 1)) {
      results.push_back(at::empty_like(tensor, tensor.options().dtype(dtype)));
    }
    results.push_back(at::empty(gathers ? sizes.compact : sizes.dense, tensors.back().options().dtype(dtype)));
    CastArguments arguments = as_runs(tensors, results, true);
    arguments.windows = sizes.windows;
    arguments.gathers = gathers;
    if (is_cast_on_gpu(arguments, tensors[0])) return results;
  }
  std::vector<Tensor> results = cast_all(tensors.slice(0, tensors.size() - 1), dtype);
  results.push_back(expanded_or_gathered(tensors.back(), dtype, sizes, gathers));
  return results;
}

/// The gradient of an expanded weight is gathered, and that of a gathered one expanded.
struct Cast : torch::autograd::Function<Cast> {
  static variable_list forward(AutogradContext* context, at::TensorList tensors, at::ScalarType dtype,
                               const std::optional<Sliding>& sliding) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->set_materialize_grads(false);
    std::vector<std::int64_t> dtypes;
    for (const Tensor& tensor : tensors) dtypes.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    context->saved_data["dtypes"] = dtypes;
    context->saved_data["slides"] = sliding.has_value();
    if (!sliding) return cast(tensors, dtype);
    context->saved_data["channels"] = sliding->channels;
    context->saved_data["groups"] = sliding->groups;
    context->saved_data["overlap"] = sliding->overlap;
    context->saved_data["gathers"] = sliding->gathers;
    return cast_sliding(tensors, dtype, sliding->channels, sliding->groups, sliding->overlap, sliding->gathers);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    auto& saved = context->saved_data;
    const auto dtypes = saved["dtypes"].toIntVector();
    std::map<std::int64_t, std::vector<std::size_t>> by_dtype;
    for (std::size_t i = 0; i < grad_outputs.size(); ++i) {
      if (grad_outputs[i].defined()) by_dtype[dtypes[i]].push_back(i);
    }
    variable_list gradients(grad_outputs.size() + 2);
    for (const auto& [dtype, places] : by_dtype) {
      variable_list alike;
      for (const std::size_t i : places) alike.push_back(grad_outputs[i]);
      const auto to = static_cast<at::ScalarType>(dtype);
      const bool slides = saved["slides"].toBool() && places.back() + 1 == grad_outputs.size();
      const variable_list results = slides ? cast_sliding(alike, to, saved["channels"].toInt(), saved["groups"].toInt(),
                                                          saved["overlap"].toDouble(), !saved["gathers"].toBool())
                                           : cast(alike, to);
      for (std::size_t i = 0; i < places.size(); ++i) gradients[places[i]] = results[i];
    }
    return gradients;
  }
};

std::vector<Tensor> cast_autograd(at::TensorList tensors, std::string_view dtype) {
  refuse_transforms("_cast", tensors);
  return Cast::apply(tensors, dtype_of(dtype), std::nullopt);
}

std::vector<Tensor> cast_sliding_autograd(at::TensorList tensors, std::string_view dtype, std::int64_t channels,
                                          std::int64_t groups, double overlap, bool gathers) {
  refuse_transforms("_cast_sliding", tensors);
  return Cast::apply(tensors, dtype_of(dtype), Sliding{channels, groups, overlap, gathers});
}

void register_kernels(torch::Library& m) {
  m.impl("_cast", translated<cast_kernel>);
  m.impl("_cast_sliding", translated<cast_sliding_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CompositeExplicitAutograd, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("_cast", translated<cast_autograd>);
  m.impl("_cast_sliding", translated<cast_sliding_autograd>);
}

}  // namespace fusedsc::aten
