/// An operator's arguments in words, without addresses: what a measured choice is stored under, and what people read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/tuning/problem_key.h"
#include "fusedsc/tuning/views.h"

namespace fusedsc::tuning {

/// "x=float16[64,32,112,112] channels_last align=64 gpu, weight=..., window{kernel=[3,3], stride=[1,1], ...}". What is
/// not given, zero or false is left out. Two problems have the same text if and only if they have the same ProblemKey.
class ProblemText {
 public:
  /// Of FUSEDSC_MEMBERS: `names` are those of the parts.
  template <class... Parts>
  void members(std::string_view names, const Parts&... parts) {
    (add(next_of(names), parts), ...);
  }

  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void add(std::string_view name, T value) { add_number(name, static_cast<std::int64_t>(value)); }
  void add(std::string_view name, bool value);
  void add(std::string_view name, double value);
  void add(std::string_view name, Activation value);
  void add(std::string_view name, const std::string& value);
  template <class T>
  void add(std::string_view name, T* pointer) {
    add(name, pointer != nullptr);
  }
  template <class T>
  void add(std::string_view name, const std::optional<T>& value) {
    add(std::string(name) + "_is_given", value.has_value());
    if (value) add(name, *value);
  }
  template <class T>
  void add(std::string_view name, const std::vector<T>& values) {
    add(std::string(name) + "_count", values.size());
    for (std::size_t i = 0; i < values.size(); ++i) add(std::string(name) + std::to_string(i), values[i]);
  }
  template <std::size_t kCount>
  void add(std::string_view name, const std::array<std::int64_t, kCount>& values) {
    add_numbers(name, values.data(), kCount);
  }
  template <class Pointer>
  void add(std::string_view name, const BasicTensorView<Pointer>& tensor) {
    add_tensor(name, tensor);
  }
  template <class Pointer>
  void add(std::string_view name, const BasicChannelVector<Pointer>& vector) {
    add_vector(name, vector);
  }
  template <class Struct>
  requires std::is_class_v<Struct>
  void add(std::string_view name, const Struct& value) {
    ProblemText inner;
    visit_members(inner, value);
    if (!inner.text_.empty()) begin(name) += '{' + inner.text_ + '}';
  }

  const std::string& text() const { return text_; }

 private:
  /// The first of names that are separated by ", ", which is taken from them.
  static std::string_view next_of(std::string_view& names);
  std::string& begin(std::string_view name);
  void add_number(std::string_view name, std::int64_t value);
  void add_numbers(std::string_view name, const std::int64_t* values, std::size_t count);
  void add_tensor(std::string_view name, const ConstTensorView& tensor);
  void add_vector(std::string_view name, const ConstChannelVector& vector);
  void add_memory(const void* data, Device device);

  std::string text_;
};

/// Of an operator's arguments; with the threads on a CPU, whose number a plan depends on.
template <class Arguments>
std::string problem_text(const Arguments& arguments, int threads) {
  ProblemText text;
  visit_members(text, arguments);
  if (input_of(arguments).device == Device::cpu) text.add("threads", threads);
  return text.text();
}

/// The same of all problems with the same result y, or gradients: those that differ in their statistics, or in where
/// memory begins.
template <class Arguments>
std::string result_text(const Arguments& arguments, int threads) {
  alignas(64) static constexpr char kSomewhere = 0;
  Arguments copy = arguments;
  if constexpr (requires { copy.statistics; }) {
    copy.statistics = {};
    copy.y.data = const_cast<char*>(&kSomewhere);  // which may not be wanted where its statistics are
  }
  if constexpr (requires { copy.prologue_is_new; }) copy.prologue_is_new = false;
  EachView each([](auto& view) { view.data = const_cast<char*>(&kSomewhere); });
  visit_members(each, copy);
  return problem_text(copy, threads);
}

}  // namespace fusedsc::tuning
