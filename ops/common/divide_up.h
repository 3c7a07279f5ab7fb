/// How many pieces of a size cover a number of things.
#pragma once

#include <cstdint>

namespace fusedsc {

constexpr std::int64_t divide_up(std::int64_t number, std::int64_t size) { return (number + size - 1) / size; }
/// As an int, where they are known to be few.
constexpr int int_divide_up(std::int64_t number, std::int64_t size) {
  return static_cast<int>(divide_up(number, size));
}

}  // namespace fusedsc
