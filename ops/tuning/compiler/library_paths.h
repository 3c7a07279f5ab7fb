/// Where the libraries of compilers at run time may lie.
#pragma once

#include <string>
#include <vector>

namespace fusedsc::tuning {

/// In the order in which they are tried; file names alone are looked for by the loader. Empty where
/// FUSEDSC_COMPILER=none.
std::vector<std::string> nvrtc_paths();
std::vector<std::string> hiprtc_paths();

/// The library that has a function.
std::string path_of_function(const void* function);

}  // namespace fusedsc::tuning
