/// What a plan depends on, of an operator's arguments: everything but addresses, of which the alignment counts and
/// whether they are given. problem_text.h has the same in words.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::tuning {

/// The largest power of two that divides an address, up to a line of a CPU's cache, which is the most that anything
/// asks for; 0: not given.
inline std::uint64_t alignment_of(const void* address) {
  constexpr std::uintptr_t kMost = 64;
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return value == 0 ? 0 : std::uint64_t{1} << std::countr_zero(value | kMost);
}

/// A sequence of words. Two problems have the same one if and only if they are planned alike.
class ProblemKey {
 public:
  void begin() { words_.clear(); }

  template <class... Parts>
  void add(const Parts&... parts) {
    (add_one(parts), ...);
  }

  /// Of FUSEDSC_MEMBERS.
  template <class... Parts>
  void members(const char* /*names*/, const Parts&... parts) {
    add(parts...);
  }

  std::uint64_t hash() const {
    std::uint64_t hash = words_.size();
    for (const std::uint64_t word : words_) hash = std::rotl((hash ^ word) * 0x9e3779b97f4a7c15u, 29);
    return hash;
  }
  bool is(const std::vector<std::uint64_t>& words) const { return words == words_; }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  template <class Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add_one(Number number) { words_.push_back(static_cast<std::uint64_t>(number)); }
  void add_one(double number) { words_.push_back(std::bit_cast<std::uint64_t>(number)); }
  void add_one(const std::string& text) {
    words_.push_back(text.size());
    for (std::size_t i = 0; i < text.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      words_.push_back(word);
    }
  }
  /// What it points to is asked when a plan runs.
  template <class T>
  void add_one(T* pointer) {
    add(pointer != nullptr);
  }
  template <class T>
  void add_one(const std::optional<T>& value) {
    add(value.has_value(), value.value_or(T()));
  }
  template <class T>
  void add_one(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add_one(value);
  }
  template <class T, std::size_t kCount>
  void add_one(const std::array<T, kCount>& values) {
    for (const T& value : values) add_one(value);
  }
  template <class Pointer>
  void add_one(const BasicTensorView<Pointer>& tensor) {
    const auto& [data, dtype, sizes, strides, device] = tensor;
    const auto kind = static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(device);
    words_.push_back(kind << 16 | alignment_of(data));
    add(sizes, strides);
  }
  template <class Pointer>
  void add_one(const BasicChannelVector<Pointer>& vector) {
    const auto& [data, dtype, size, device] = vector;
    const auto kind = static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(device);
    words_.push_back(kind << 16 | alignment_of(data));
    add(size);
  }
  template <class Struct>
  requires std::is_class_v<Struct>
  void add_one(const Struct& value) { visit_members(*this, value); }

  std::vector<std::uint64_t> words_;
};

}  // namespace fusedsc::tuning
