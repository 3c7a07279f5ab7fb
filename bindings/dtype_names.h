/// Names of dtypes, for operators' schemas: AOTInductor hands dtypes on by numbers that mean others here.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "fusedsc/common/status.h"

namespace fusedsc::aten {

inline constexpr std::array<std::pair<at::ScalarType, std::string_view>, 4> kDtypeNames = {
    {{at::kFloat, "float32"}, {at::kHalf, "float16"}, {at::kBFloat16, "bfloat16"}, {at::kDouble, "float64"}}};

inline std::string_view dtype_name(at::ScalarType dtype) {
  const auto* const found = std::ranges::find(kDtypeNames, dtype, [](const auto& known) { return known.first; });
  check(found != kDtypeNames.end(), "dtype: it is ", c10::toString(dtype),
        "; use float32, float16, bfloat16 or float64");
  return found->second;
}

inline at::ScalarType dtype_of(std::string_view name) {
  const auto* const found = std::ranges::find(kDtypeNames, name, [](const auto& known) { return known.second; });
  check(found != kDtypeNames.end(), "dtype: unknown name \"", name, "\"; use float32, float16, bfloat16 or float64");
  return found->first;
}

}  // namespace fusedsc::aten
