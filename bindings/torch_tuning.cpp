/// Which kernel shall run: for Python, beside fusedsc/tuning/force.h for C++.
#include <torch/library.h>

#include "fusedsc/tuning/force.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using Strings = std::vector<std::string>;

std::tuple<Strings, Strings> kernels() {
  std::tuple<Strings, Strings> columns;
  for (const tuning::RoleNames& role : tuning::roles()) {
    for (const char* kernel : role.kernels) {
      std::get<0>(columns).emplace_back(role.name);
      std::get<1>(columns).emplace_back(kernel);
    }
  }
  return columns;
}

std::string force(std::string role, std::string choice) { return tuning::force(role, choice); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(fusedsc, m) {
  // "" forces nothing any more; returns what was forced before.
  m.def("_force(str role, str choice) -> str", translated<force>);
  m.def("_kernels() -> (str[] role, str[] kernel)", translated<kernels>);
}

}  // namespace fusedsc::aten
