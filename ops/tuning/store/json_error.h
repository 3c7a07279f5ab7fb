/// What is wrong with a text that should be JSON.
#pragma once

#include <algorithm>
#include <exception>
#include <string>

namespace fusedsc::tuning {

/// The parser's exception quotes the text's bytes, whatever they are. A message goes to Python, which wants UTF-8:
/// bytes that are no ASCII become "?".
inline std::string not_whole(const std::exception& error) {
  std::string message = std::string("it is not whole: ") + error.what();
  std::replace_if(
      message.begin(), message.end(), [](unsigned char byte) { return byte >= 0x80; }, '?');
  return message;
}

}  // namespace fusedsc::tuning
