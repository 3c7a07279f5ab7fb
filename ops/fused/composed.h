/// Entries of implementation lists whose work is a chain of the plain operators.
#pragma once

#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// The entry "composed" of a chain: Chain(arguments, workspace), with workspace_bytes(threads) and run(execution).
template <class Chain, class Arguments>
Implementation<Arguments> composed(std::string (*why_not)(const Arguments&)) {
  return {
      .name = "composed",
      .why_not = why_not,
      .workspace_bytes = [](const Arguments& arguments,
                            int threads) { return Chain(arguments, nullptr).workspace_bytes(threads); },
      .run = [](const Arguments& arguments,
                const Execution& execution) { Chain(arguments, execution.workspace).run(execution); },
  };
}

}  // namespace fusedsc
