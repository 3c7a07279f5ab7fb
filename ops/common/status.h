/// What goes wrong is said by an exception whose message names the argument, what it was and what is allowed.
#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>

namespace fusedsc {

/// A message without bytes that are zero, where what() would end: what somebody gave as a name may have them.
inline std::string without_zeros(std::string message) {
  for (std::size_t at = message.find('\0'); at != std::string::npos; at = message.find('\0', at)) {
    message.replace(at, 1, "\\0");
  }
  return message;
}

/// An argument that no implementation could accept: a wrong shape, type or value.
class InvalidArgument : public std::invalid_argument {
 public:
  explicit InvalidArgument(const std::string& message) : std::invalid_argument(without_zeros(message)) {}
};

/// Arguments that are right in themselves, but that no implementation of this build can run.
class Unsupported : public std::runtime_error {
 public:
  explicit Unsupported(const std::string& message) : std::runtime_error(without_zeros(message)) {}
};

/// Throws InvalidArgument with the message's parts joined, unless `condition` holds.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw InvalidArgument(message.str());
}

}  // namespace fusedsc
