/// A hash of text that is the same in every process and on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fusedsc::tuning {

/// FNV-1a, in 16 digits.
inline std::string hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3u;
  std::string digits(16, '0');
  for (std::size_t i = digits.size(); i-- > 0; hash >>= 4) digits[i] = "0123456789abcdef"[hash & 15];
  return digits;
}

}  // namespace fusedsc::tuning
