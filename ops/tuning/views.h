/// All tensors and vectors among an operator's arguments, so that it can be run with other memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "fusedsc/common/status.h"
#include "fusedsc/common/tensor_view.h"
#include "fusedsc/tuning/problem_key.h"

namespace fusedsc::tuning {

/// Calls with each view that is given, in the order of the members.
template <class Function>
class EachView {
 public:
  explicit EachView(Function function) : function_(function) {}

  /// Of FUSEDSC_MEMBERS.
  template <class... Parts>
  void members(const char* /*names*/, Parts&... parts) {
    (visit(parts), ...);
  }

 private:
  template <class Pointer>
  void visit(BasicTensorView<Pointer>& tensor) {
    if (tensor) function_(tensor);
  }
  template <class Pointer>
  void visit(BasicChannelVector<Pointer>& vector) {
    if (vector) function_(vector);
  }
  template <class T>
  void visit(std::optional<T>& value) {
    if (value) visit(*value);
  }
  template <class T>
  void visit(std::vector<T>& values) {
    for (T& value : values) visit(value);
  }
  template <class T>
  void visit(T& value) {
    if constexpr (requires { visit_members(*this, value); }) visit_members(*this, value);
  }

  Function function_;
};

/// The tensor that says where arguments are: x, or, of a backward pass that has its forward's arguments, theirs.
template <class Arguments>
const ConstTensorView& input_of(const Arguments& arguments) {
  if constexpr (requires { arguments.x; }) return arguments.x;
  else return arguments.forward.x;
}

/// Whether they can be run again, by whom and whenever: not what calls back whoever called first.
template <class Arguments>
bool can_be_repeated(const Arguments& arguments) {
  if constexpr (requires { arguments.merge; }) return arguments.merge == nullptr;
  else if constexpr (requires { arguments.forward.merge; }) return arguments.forward.merge == nullptr;
  else return true;
}

/// Elements of a view lie in [first, first + count) from its address on; strides may be negative.
struct Extent {
  std::int64_t first = 0, count = 0;
};

template <class Pointer>
Extent extent_of(const BasicTensorView<Pointer>& tensor) {
  std::int64_t first = 0, last = 0;
  for (std::size_t axis = 0; axis < tensor.sizes.size(); ++axis) {
    const std::int64_t reach = (tensor.sizes[axis] - 1) * tensor.strides[axis];
    (reach < 0 ? first : last) += reach;
  }
  return {first, tensor.elements() == 0 ? 0 : last - first + 1};
}

template <class Pointer>
Extent extent_of(const BasicChannelVector<Pointer>& vector) {
  return {0, vector.size};
}

/// Memory for one of the views.
struct Buffer {
  DataType dtype = DataType::float32;
  std::int64_t bytes = 0;
};

inline constexpr std::int64_t kBufferAlignment = 64;

/// Where in its buffer the address of a view is: behind what has negative strides, and as much aligned as it was.
template <class View>
std::int64_t place_in_buffer(const View& view) {
  const auto alignment = static_cast<std::int64_t>(alignment_of(view.data));
  const std::int64_t before = -extent_of(view).first * static_cast<std::int64_t>(size_of(view.dtype));
  return (before + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment + alignment % kBufferAlignment;
}

/// Those that the arguments need in place of their own memory, in the order of their views.
template <class Arguments>
std::vector<Buffer> buffers_of(const Arguments& arguments) {
  std::vector<Buffer> buffers;
  Arguments copy = arguments;
  EachView each([&]<class View>(View& view) {
    const auto [first, count] = extent_of(view);
    const std::int64_t behind = (first + count) * static_cast<std::int64_t>(size_of(view.dtype));
    buffers.push_back({view.dtype, place_in_buffer(view) + behind});
  });
  visit_members(each, copy);
  return buffers;
}

/// The same arguments with other memory: `buffers` are aligned to kBufferAlignment. Addresses are as much aligned as
/// before, so that plans stay what they are.
template <class Arguments>
Arguments with_buffers(const Arguments& arguments, std::span<void* const> buffers) {
  Arguments bound = arguments;
  std::size_t next = 0;
  EachView each([&]<class View>(View& view) {
    check(next < buffers.size(), "buffers: there are ", buffers.size(), ", which are too few");
    view.data = static_cast<char*>(buffers[next++]) + place_in_buffer(view);
  });
  visit_members(each, bound);
  check(next == buffers.size(), "buffers: there are ", buffers.size(), ", but must be ", next);
  return bound;
}

}  // namespace fusedsc::tuning
