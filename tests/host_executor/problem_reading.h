/// An operator's arguments from their text (tuning/problem_text.h): what rows and tables have of a problem, as it can
/// be planned again. Addresses are where nothing is, aligned as the text says.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"
#include "fusedsc/tuning/problem_text.h"

namespace fusedsc {

/// A visitor of FUSEDSC_MEMBERS: numbers that are left out are 0, whatever they are by default. Throws InvalidArgument
/// for a value that it cannot read. What there is no member for it leaves out: problem_text() of the result says
/// whether it was all.
class ProblemReading {
 public:
  explicit ProblemReading(std::string_view text) {
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (i < text.size() && text[i] == '{') ++depth;
      if (i < text.size() && text[i] == '}') --depth;
      if (i < text.size() && (depth > 0 || text.substr(i, 2) != ", ")) continue;
      const std::string_view part = text.substr(begin, i - begin);
      const std::size_t end = std::min(part.find_first_of("={"), part.size());
      parts_.emplace_back(part.substr(0, end), part.substr(end));
      begin = i + 2;
    }
  }

  template <class... Parts>
  void members(std::string_view names, Parts&... parts) {
    (read(next_of(names), parts), ...);
  }

 private:
  static std::string_view next_of(std::string_view& names) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    names.remove_prefix(std::min(names.size(), names.find_first_not_of(' ')));
    return name;
  }

  /// What follows the name: "=...", "{...}", or nothing.
  std::optional<std::string_view> value_of(std::string_view name) const {
    for (const auto& [part, value] : parts_) {
      if (part == name) return value;
    }
    return {};
  }
  template <class T>
  static T number(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc() && end == text.data() + text.size(), "\"", text, "\" is no number");
    return value;
  }
  /// "float16[2,3]...": the sizes; what follows them stays.
  template <std::size_t kCount>
  static std::array<std::int64_t, kCount> list(std::string_view& text) {
    std::array<std::int64_t, kCount> values{};
    const std::size_t open = text.find('['), close = text.find(']');
    check(open != std::string_view::npos && close != std::string_view::npos, "\"", text, "\" has no list");
    std::string_view rest = text.substr(open + 1, close - open - 1);
    for (std::int64_t& value : values) {
      const std::string_view one = rest.substr(0, rest.find(','));
      value = number<std::int64_t>(one);
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    }
    check(rest.empty(), "\"", text, "\" has more than ", kCount, " numbers");
    text.remove_prefix(close + 1);
    return values;
  }
  static DataType dtype_of(std::string_view text) {
    for (const DataType dtype : {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16}) {
      if (text.starts_with(std::string("=") + name_of(dtype) + '[')) return dtype;
    }
    throw InvalidArgument("\"" + std::string(text) + "\" is no tensor");
  }
  template <class Pointer>
  Pointer memory(std::string_view text) {
    const std::size_t place = text.find("align=");
    if (place == std::string_view::npos) return nullptr;
    std::string_view digits = text.substr(place + 6);
    digits = digits.substr(0, digits.find(' '));
    return reinterpret_cast<Pointer>((++places_ << 40) + number<std::uintptr_t>(digits) % 64);
  }
  static Device device(std::string_view text) { return text.ends_with(" gpu") ? Device::gpu : Device::cpu; }

  void read(std::string_view name, bool& value) { value = value_of(name).has_value(); }
  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void read(std::string_view name, T& value) {
    const auto text = value_of(name);
    value = static_cast<T>(text ? number<std::int64_t>(text->substr(1)) : 0);
  }
  void read(std::string_view name, double& value) {
    const auto text = value_of(name);
    value = text ? number<double>(text->substr(1)) : 0;
  }
  void read(std::string_view name, Activation& value) {
    const auto text = value_of(name);
    value = text ? activation_from_name(std::string(text->substr(1))) : Activation::identity;
  }
  void read(std::string_view name, std::string& value) {
    if (const auto text = value_of(name)) value = text->substr(2, text->size() - 3);  // ="..."
  }
  template <class T>
  void read(std::string_view name, std::optional<T>& value) {
    if (!value_of(std::string(name) + "_is_given")) return;
    value.emplace();
    read(name, *value);
  }
  template <class T>
  void read(std::string_view name, std::vector<T>& values) {
    std::size_t count = 0;
    read(std::string(name) + "_count", count);
    check(count < 1000, "\"", name, "\" is a list of ", count);
    values.resize(count);
    for (std::size_t i = 0; i < count; ++i) read(std::string(name) + std::to_string(i), values[i]);
  }
  template <class T>
  void read(std::string_view name, T*& pointer) {
    if (value_of(name)) pointer = reinterpret_cast<T*>(++places_ << 40);
  }
  template <std::size_t kCount>
  void read(std::string_view name, std::array<std::int64_t, kCount>& values) {
    auto text = value_of(name);
    values = text ? list<kCount>(*text) : std::array<std::int64_t, kCount>();
  }
  template <class Pointer>
  void read(std::string_view name, BasicTensorView<Pointer>& tensor) {
    auto text = value_of(name);
    if (!text) return;
    tensor.dtype = dtype_of(*text);
    tensor.sizes = list<4>(*text);
    if (text->starts_with(" contiguous")) tensor.strides = dense_strides(tensor.sizes, Layout::contiguous);
    else if (text->starts_with(" channels_last")) tensor.strides = dense_strides(tensor.sizes, Layout::channels_last);
    else tensor.strides = list<4>(*text);
    tensor.data = memory<Pointer>(*text);
    tensor.device = device(*text);
  }
  template <class Pointer>
  void read(std::string_view name, BasicChannelVector<Pointer>& vector) {
    auto text = value_of(name);
    if (!text) return;
    vector.dtype = dtype_of(*text);
    vector.size = list<1>(*text)[0];
    vector.data = memory<Pointer>(*text);
    vector.device = device(*text);
  }
  template <class Struct>
  requires std::is_class_v<Struct>
  void read(std::string_view name, Struct& value) {
    const auto text = value_of(name);
    if (!text || text->size() < 2) return;
    ProblemReading inner(text->substr(1, text->size() - 2));
    inner.places_ = places_ += 64;
    visit_members(inner, value);
  }

  std::vector<std::pair<std::string_view, std::string_view>> parts_;
  std::uintptr_t places_ = 0;
};

template <class Arguments>
Arguments problem_from(std::string_view text) {
  Arguments arguments;
  ProblemReading reading(text);
  visit_members(reading, arguments);
  return arguments;
}

}  // namespace fusedsc
