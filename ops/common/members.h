/// The members of a struct, said once for all that goes through them: what tells problems apart, what prints them, and
/// what gives them other memory (tuning/problem_key.h, problem_text.h, views.h).
#pragma once

#include <type_traits>

/// All members of a struct in their order, in the members.h of its folder. visit_members(visitor, value) calls
/// visitor.members("x, y, z", value.x, value.y, value.z). A struct that gets another member does not compile until that
/// has its place here.
#define FUSEDSC_MEMBERS(Struct, ...)                          \
  template <class Visitor, class Value>                       \
  requires std::is_same_v<std::remove_const_t<Value>, Struct> \
  void visit_members(Visitor& visitor, Value& value) {        \
    auto& [__VA_ARGS__] = value;                              \
    visitor.members(#__VA_ARGS__, __VA_ARGS__);               \
  }
