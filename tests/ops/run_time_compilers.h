/// Whether tests can compile at run time. Where there has to be a compiler, its absence is a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "fusedsc/tuning/compiler/compiler.h"

namespace fusedsc::tuning {

/// `why_not`: what RuntimeCompiler says. Tests are skipped without a compiler, and fail where FUSEDSC_TEST_COMPILERS
/// ("nvrtc hiprtc") names it.
inline bool can_compile(CompilerKind kind, std::string_view why_not) {
  const char* const names = std::getenv("FUSEDSC_TEST_COMPILERS");
  const std::string_view name = kind == CompilerKind::nvrtc ? "nvrtc" : "hiprtc";
  if (names != nullptr && std::string_view(names).find(name) != std::string_view::npos) {
    EXPECT_EQ(why_not, "") << "FUSEDSC_TEST_COMPILERS is \"" << names << '"';
  }
  return why_not.empty();
}

}  // namespace fusedsc::tuning
