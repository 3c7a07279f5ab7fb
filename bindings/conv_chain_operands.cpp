#include "conv_chain_operands.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "fusedsc/common/checks/check_part.h"
#include "joined_tensors.h"
#include "kept_tensors.h"
#include "new_tensor.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {

void check_list_sizes(const ConvChainTensors& tensors, const ConvChainOptions& options) {
  const std::size_t stages = tensors.weights.size();
  check(stages > 0, "weights: there are none; give one for each convolution");
  const auto expect = [stages](const char* name, std::size_t size, std::size_t per_stage) {
    check(size == per_stage * stages, name, ": it has ", size, " elements; give ", per_stage, " for each of the ",
          stages, " weights");
  };
  expect("biases", tensors.biases.size(), 1);
  expect("bn_parameters", tensors.bn_parameters.size(), 2);
  expect("has_bn", options.has_bn.size(), 1);
  expect("activations", options.activations.size(), 1);
  expect("strides", options.strides.size(), 2);
  expect("paddings", options.paddings.size(), 4);
  expect("dilations", options.dilations.size(), 2);
  expect("groups", options.groups.size(), 1);
}

bool is_pointwise_stage(const Tensor& weight, const ConvChainOptions& options, std::size_t stage) {
  const auto all = [](IntArrayRef numbers, std::int64_t wanted) {
    return std::all_of(numbers.begin(), numbers.end(), [wanted](std::int64_t number) { return number == wanted; });
  };
  return options.groups[stage] == 1 && weight.sym_size(2) == 1 && weight.sym_size(3) == 1 &&
         all(options.stride(stage), 1) && all(options.padding(stage), 0);
}

BlockLayout layout_of_chain(const Tensor& x, at::TensorList weights, const ConvChainOptions& options,
                            bool differentiates) {
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    if (is_pointwise_stage(weights[i], options, i) || !is_pointwise_stage(weights[i + 1], options, i + 1)) continue;
    const Window window = window_of(weights[i], options.stride(i), options.padding(i), options.dilation(i));
    const bool expands = i > 0 && is_pointwise_stage(weights[i - 1], options, i - 1);
    return {x, weights[i], weights[i + 1], {.window = window, .expands = expands, .differentiates = differentiates}};
  }
  return {};
}

std::vector<SymSizes> conv_chain_sizes(const Tensor& x, const ConvChainTensors& tensors,
                                       const ConvChainOptions& options) {
  check_activation("x", x);
  std::vector<SymSizes> sizes;
  const c10::SymIntArrayRef x_sizes = x.sym_sizes();
  SymSizes from{x_sizes[0], x_sizes[1], x_sizes[2], x_sizes[3]};
  for (std::size_t i = 0; i < tensors.weights.size(); ++i) {
    check_part("stages", i, [&, &weight = tensors.weights[i]] {
      check_weight("weight", weight, x, WeightTypes::cast_too);
      const c10::SymIntArrayRef channels(from);
      if (is_pointwise_stage(weight, options, i)) {
        from = pointwise_output_sizes(channels, weight.sym_sizes(), 1);
      } else {
        check(channels[1] == options.groups[i], "groups: it is ", options.groups[i], ", with ", channels[1],
              " input channels and a kernel of ", weight.sym_size(2), " x ", weight.sym_size(3),
              "; a chain consists of depthwise convolutions, with as many groups as input channels, and of 1x1 "
              "convolutions without groups, stride or padding");
        from = depthwise_output_sizes(channels, weight.sym_sizes(),
                                      window_of(weight, options.stride(i), options.padding(i), options.dilation(i)));
      }
      check_bias("bias", tensors.biases.get(i), x, from[1], WeightTypes::cast_too);
      check_batch_norm_vector("bn weight", tensors.bn_parameters.get(2 * i), x, from[1]);
      check_batch_norm_vector("bn bias", tensors.bn_parameters.get(2 * i + 1), x, from[1]);
    });
    sizes.push_back(from);
  }
  return sizes;
}

void check_conv_chain(const Tensor& x, const ConvChainOptions& options, const std::vector<SymSizes>& sizes,
                      const OptionalTensor& statistics, at::ArrayRef<double> eps, const OptionalTensor& branch_scale,
                      std::int64_t processes) {
  check(eps.size() == sizes.size(), "eps: it has ", eps.size(), " elements; give one for each of the ", sizes.size(),
        " weights");
  check_statistics(statistics, x, channels_of_batch_norms(options, sizes));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    check_part("stages", i, [&] {
      options.activation(i);
      if (!options.has_bn.get(i)) return;
      check(eps[i] >= 0, "eps: it is ", eps[i], "; it must not be negative");
      if (!statistics && processes == 1) check_batch_size(sizes[i]);
    });
  }
  activation_from_name(options.input_activation);
  const c10::SymIntArrayRef y(sizes.back());
  check(!options.residual || x.sym_sizes() == y, "residual: x has sizes ", x.sym_sizes(), " and the result ", y,
        "; they must be the same to be added");
  if (!branch_scale) return;
  check(branch_scale->dim() == 1 && branch_scale->sym_size(0) == y[0], "branch_scale: its sizes are ",
        branch_scale->sym_sizes(), "; give one number per image, [", y[0], "]");
  check_batch_norm_vector("branch_scale", branch_scale, x, y[0]);
}

c10::SymInt channels_of_batch_norms(const ConvChainOptions& options, const std::vector<SymSizes>& sizes) {
  c10::SymInt channels = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (options.has_bn.get(i)) channels += sizes[i][1];
  }
  return channels;
}

ConvChainCasts::ConvChainCasts(const Tensor& x, const ConvChainTensors& tensors) {
  const std::size_t stages = tensors.weights.size();
  weights.assign(stages, kAsItIs);
  biases.assign(stages, kAsItIs);
  JoinedPlaces places(x.scalar_type());
  const auto place = [&](const Tensor& tensor, bool even_ones, std::int64_t& first) {
    if (tensor.scalar_type() == x.scalar_type()) return;
    const std::int64_t count = tensor.sym_numel().guard_int(__FILE__, __LINE__);
    if (places.is_even(count) == even_ones) first = places.add(count);
  };
  for (const bool even_ones : {true, false}) {  // in this order there are gaps between few, if any
    for (std::size_t i = 0; i < stages; ++i) {
      place(tensors.weights[i], even_ones, weights[i]);
      const OptionalTensor bias = tensors.biases.get(i);
      if (bias) place(*bias, even_ones, biases[i]);
    }
  }
  elements = places.elements();
  has_gaps = places.has_gaps();
}

std::optional<CastConvolutions> kept_chain_casts(const Tensor& x, at::TensorList weights,
                                                 const TensorOptionals& biases) {
  const at::ScalarType dtype = x.scalar_type();
  if (at::GradMode::is_enabled() && notes_gradients()) {
    std::vector<Tensor> parameters = weights.vec();
    for (const OptionalTensor& bias : biases) {
      if (bias) parameters.push_back(*bias);
    }
    note_gradients(parameters);
  }
  std::vector<Tensor> others;
  const auto is_cast = [dtype](const Tensor& tensor) { return tensor.scalar_type() != dtype; };
  std::ranges::copy_if(weights, std::back_inserter(others), is_cast);
  for (const OptionalTensor& bias : biases) {
    if (bias && is_cast(*bias)) others.push_back(*bias);
  }
  auto kept = kept_casts(others, {}, dtype, [&] {
    std::vector<Tensor> dense;  // as kernels read them
    for (const Tensor& other : others) dense.push_back(other.contiguous());
    return aten::cast(dense, dtype);
  });
  if (!kept) return std::nullopt;
  auto next = kept->begin();
  CastConvolutions result;
  for (const Tensor& weight : weights) result.weights.push_back(is_cast(weight) ? std::move(*next++) : weight);
  for (const OptionalTensor& bias : biases) {
    result.biases.push_back(bias && is_cast(*bias) ? OptionalTensor(std::move(*next++)) : bias);
  }
  return result;
}

ConvChainOperands::ConvChainOperands(const Tensor& x_, const ConvChainTensors& tensors, const Tensor& statistics_,
                                     const OptionalTensor& branch_scale_, const ConvChainOptions& options,
                                     at::TensorList raw, bool are_folded)
    : x(addressable(x_)),
      statistics(statistics_.contiguous()),
      branch_scale(vector_of(branch_scale_, accumulation_type(x_.scalar_type()))),
      casts(x_, tensors),
      raw_(raw) {
  const std::size_t stages = options.stages();
  if (!raw.empty()) {
    std::size_t expected = casts.elements > 0;
    for (std::size_t i = 0; i < stages; ++i) expected += options.reads_raw(i);
    check(raw.size() == expected, "raw: it has ", raw.size(), " elements; give the ", expected,
          " that forward returned");
    if (casts.elements > 0) joined = raw.back();
  }
  weights.reserve(stages);
  biases.reserve(stages);
  bn_parameters.reserve(2 * stages);
  for (std::size_t i = 0; i < stages; ++i) {
    weights.push_back(tensors.weights[i].contiguous());
    const OptionalTensor bias = tensors.biases.get(i);
    biases.push_back(bias ? bias->contiguous() : Tensor());
    for (const std::size_t j : {2 * i, 2 * i + 1}) {
      const OptionalTensor parameter = are_folded ? OptionalTensor() : tensors.bn_parameters.get(j);
      bn_parameters.push_back(vector_of(parameter, statistics.scalar_type()));
    }
  }
}

void ConvChainOperands::cast() {
  if (casts.elements == 0) return;
  if (!joined.defined()) joined = new_tensor({casts.elements}, x, x.scalar_type());
  if (casts.has_gaps) {  // backward is given it by forward, and nothing that operators return is left to chance
    const at::AutoDispatchBelowADInplaceOrView guard;
    joined.zero_();
  }
  std::vector<JoinedPiece> pieces;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (casts.weights[i] != ConvChainCasts::kAsItIs) pieces.push_back({weights[i], casts.weights[i]});
    if (casts.biases[i] != ConvChainCasts::kAsItIs) pieces.push_back({biases[i], casts.biases[i]});
  }
  cast_into(joined, pieces);
}

ConvChainArguments ConvChainOperands::arguments(const ConvChainOptions& options, bool training) const {
  ConvChainArguments arguments;
  arguments.x = view(x);
  arguments.input_activation = activation_from_name(options.input_activation);
  arguments.residual = options.residual;
  arguments.branch_scale = channels(branch_scale);
  arguments.training = training;
  arguments.allow_tf32 = convolutions_allow_tf32();
  std::int64_t first = 0;
  std::size_t kept = 0;
  const ChannelVector rows = mutable_row(statistics, 0);
  const bool has_all = has_all_rows(statistics);
  const auto element_bytes = static_cast<std::int64_t>(statistics.element_size());
  const std::int64_t row_bytes = rows.size * element_bytes;
  for (std::size_t i = 0; i < options.stages(); ++i) {
    ConvStage& stage = arguments.stages.emplace_back();
    stage.weight = view(weights[i]);
    stage.bias = channels(biases[i]);
    if (casts.weights[i] != ConvChainCasts::kAsItIs) {
      stage.weight = joined_view(joined, casts.weights[i], view(weights[i]));
    }
    if (casts.biases[i] != ConvChainCasts::kAsItIs) {
      const TensorView bias = joined_view(joined, casts.biases[i], elements(biases[i]));
      stage.bias = {bias.data, bias.dtype, stage.bias.size, bias.device};
    }
    stage.activation = options.activation(i);
    if (!is_pointwise_stage(weights[i], options, i)) {
      stage.kind = ConvStage::Kind::depthwise;
      stage.window = window_of(weights[i], options.stride(i), options.padding(i), options.dilation(i));
    }
    if (!raw_.empty() && options.reads_raw(i)) stage.raw = mutable_view(raw_[kept++]);
    if (!options.has_bn.get(i)) continue;
    const std::int64_t size = weights[i].size(0);
    const auto row = [&](std::int64_t number) {  // every one by mutable_row would ask the tensor again
      ChannelVector own = rows;
      if (!own) return own;
      own.data = static_cast<char*>(own.data) + number * row_bytes + first * element_bytes;
      own.size = size;
      return own;
    };
    BatchNormParameters& bn = stage.bn.emplace();
    bn.weight = channels(bn_parameters[2 * i]);
    bn.bias = channels(bn_parameters[2 * i + 1]);
    bn.mean = row(0);
    bn.invstd = row(1);
    if (has_all) {
      bn.variance = row(2);
      bn.scale = row(3);
      bn.shift = row(4);
    }
    first += size;
  }
  return arguments;
}

}  // namespace fusedsc::aten
