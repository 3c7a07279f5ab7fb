/// <iosfwd>, as far as device code needs it: a name in declarations.
#pragma once

#include "own_std"

namespace std {
class ostream;
}  // namespace std
