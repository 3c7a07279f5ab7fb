/// Changes of layout on a GPU.
#pragma once

#include "fusedsc/fused/change_layout.h"

namespace fusedsc::gpu {

void change_layout(const ChangeLayoutArguments& arguments, void* stream);

/// Whether the current device has kernels that are for one layout alone, and much faster than those for any.
bool has_kernels_by_layout();

}  // namespace fusedsc::gpu
