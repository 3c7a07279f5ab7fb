/// <iosfwd>, as far as device code needs it: a name in declarations.
#pragma once

namespace std {
class ostream;
}  // namespace std
