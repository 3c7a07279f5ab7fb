/// Operators' kernels as they are registered: what the library throws becomes PyTorch's own exception.
#pragma once

#include <c10/util/Exception.h>

#include <utility>

#include "fusedsc/common/status.h"

namespace fusedsc::aten {
namespace detail {

template <auto* function>
struct Translated;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct Translated<function> {
  static Result call(Arguments... arguments) {
    try {
      return function(std::forward<Arguments>(arguments)...);
    } catch (const InvalidArgument& error) {
      C10_THROW_ERROR(ValueError, error.what());
    }
  }
};

}  // namespace detail

/// The function, but for InvalidArgument: that is c10::ValueError, which Python sees as ValueError. From torch 2.15 on
/// an exception that PyTorch does not know would be a RuntimeError there.
template <auto* function>
inline constexpr auto translated = &detail::Translated<function>::call;

}  // namespace fusedsc::aten
