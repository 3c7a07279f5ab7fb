/// Shared by the autograd_<op>.cpp files.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace fusedsc::aten {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Which of the tensors passed to Function::apply want a gradient: autograd numbers only those that were given.
template <std::size_t count>
std::array<bool, count> output_mask(const AutogradContext* context, const std::array<bool, count>& given) {
  std::array<bool, count> mask{};
  std::size_t edge = 0;
  for (std::size_t i = 0; i < count; ++i) mask[i] = given[i] && context->needs_input_grad(edge++);
  return mask;
}

/// Owned as this torch owns autograd's nodes: by std::shared_ptr, or, from 2.15 on, by c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);
template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // As PyTorch's own: a long chain of nodes is not deleted by recursion. Found by its argument, in torch::autograd: a
    // qualified name would be looked up where it is written, and 2.15 has none.
    const auto release = [](auto* node) { deleteNode(node); };
    return NodePointer(new Node(std::forward<Arguments>(arguments)...), release);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

/// Of the results of a backward operator, as functions of `inputs`: throws when, and only when, someone differentiates
/// them in their turn.
inline void forbid_double_backward(const std::string& op, const variable_list& inputs, const variable_list& results) {
  if (!torch::autograd::compute_requires_grad(inputs)) return;
  const auto error = make_node<torch::autograd::Error>(
      "fusedsc: double backward of " + op +
          " is not implemented; compose the block of fusedsc.functional's "
          "depthwise_conv2d and pointwise_conv2d, which can be differentiated any number of times",
      torch::autograd::collect_next_edges(inputs));
  torch::autograd::set_history(results, error);
}

/// Absent optional tensors as undefined ones.
inline at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); }
/// Undefined tensors as absent optional ones.
inline std::optional<at::Tensor> or_none(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

}  // namespace fusedsc::aten
