/// What a kernel of a convolution computes.
#pragma once

namespace fusedsc::tuning {

enum class Direction { forward, grad_input, grad_weight };

/// For people, in the titles of texts.
inline const char* words_of(Direction direction) {
  switch (direction) {
    case Direction::forward: return "forward";
    case Direction::grad_input: return "input gradient";
    case Direction::grad_weight: return "weight gradient";
  }
  return "";
}

}  // namespace fusedsc::tuning
