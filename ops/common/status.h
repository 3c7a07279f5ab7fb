/// What goes wrong is said by an exception whose message names the argument, what it was and what is allowed.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fusedsc {

/// An argument that no implementation could accept: a wrong shape, type or value.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Arguments that are right in themselves, but that no implementation of this build can run.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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
