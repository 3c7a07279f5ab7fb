/// Changes of layout on a CPU.
#pragma once

#include "fusedsc/fused/change_layout.h"

namespace fusedsc::cpu {

void change_layout(const ChangeLayoutArguments& arguments, const Execution& execution);

}  // namespace fusedsc::cpu
