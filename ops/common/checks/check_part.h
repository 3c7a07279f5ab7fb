/// Checks of arguments that are parts of others.
#pragma once

#include <string>

#include "fusedsc/common/status.h"

namespace fusedsc {

/// The name of a member of one of several.
inline std::string name_of_part(const char* list, std::size_t index, const std::string& member) {
  return std::string(list) + "[" + std::to_string(index) + "]." + member;
}

/// Runs checks of list[index]; where they fail, the message begins with its name.
template <class Checks>
void check_part(const char* list, std::size_t index, const Checks& checks) {
  try {
    checks();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(name_of_part(list, index, error.what()));
  }
}

}  // namespace fusedsc
