#include "fusedsc/tuning/problem_text.h"

#include <algorithm>
#include <charconv>

namespace fusedsc::tuning {
namespace {

void append_list(std::string& text, const std::int64_t* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) (text += i == 0 ? '[' : ',') += std::to_string(values[i]);
  text += ']';
}

bool are_zero(const std::int64_t* values, std::size_t count) {
  return std::all_of(values, values + count, [](std::int64_t value) { return value == 0; });
}

}  // namespace

std::string_view ProblemText::next_of(std::string_view& names) {
  const std::string_view name = names.substr(0, names.find(','));
  names.remove_prefix(std::min(names.size(), name.size() + 1));
  names.remove_prefix(std::min(names.size(), names.find_first_not_of(' ')));
  return name;
}

std::string& ProblemText::begin(std::string_view name) {
  if (!text_.empty()) text_ += ", ";
  return text_ += name;
}

void ProblemText::add_number(std::string_view name, std::int64_t value) {
  if (value != 0) begin(name) += '=' + std::to_string(value);
}

void ProblemText::add(std::string_view name, bool value) {
  if (value) begin(name);
}

void ProblemText::add(std::string_view name, double value) {
  if (std::bit_cast<std::uint64_t>(value) == 0) return;
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  (begin(name) += '=').append(digits.data(), end);
}

void ProblemText::add(std::string_view name, Activation value) {
  if (value != Activation::identity) (begin(name) += '=') += name_of(value);
}

void ProblemText::add(std::string_view name, const std::string& value) {
  if (!value.empty()) (begin(name) += "=\"").append(value) += '"';
}

void ProblemText::add_numbers(std::string_view name, const std::int64_t* values, std::size_t count) {
  if (are_zero(values, count)) return;
  append_list(begin(name) += '=', values, count);
}

void ProblemText::add_tensor(std::string_view name, const ConstTensorView& tensor) {
  const auto& [data, dtype, sizes, strides, device] = tensor;
  const bool has_sizes = !are_zero(sizes.data(), sizes.size()) || !are_zero(strides.data(), strides.size());
  if (data == nullptr && dtype == DataType() && !has_sizes && device == Device()) return;
  (begin(name) += '=') += name_of(dtype);
  append_list(text_, sizes.data(), sizes.size());
  if (strides == dense_strides(sizes, Layout::contiguous)) text_ += " contiguous";
  else if (strides == dense_strides(sizes, Layout::channels_last)) text_ += " channels_last";
  else append_list(text_ += " strides=", strides.data(), strides.size());
  add_memory(data, device);
}

void ProblemText::add_vector(std::string_view name, const ConstChannelVector& vector) {
  const auto& [data, dtype, size, device] = vector;
  if (data == nullptr && dtype == DataType() && size == 0 && device == Device()) return;
  (begin(name) += '=') += name_of(dtype);
  append_list(text_, &size, 1);
  add_memory(data, device);
}

void ProblemText::add_memory(const void* data, Device device) {
  text_ += data == nullptr ? " not given" : " align=" + std::to_string(alignment_of(data));
  if (device == Device::gpu) text_ += " gpu";
}

}  // namespace fusedsc::tuning
