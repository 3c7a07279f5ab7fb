/// Casts on a GPU.
#pragma once

#include "fusedsc/fused/cast.h"

namespace fusedsc::gpu {

void cast(const CastArguments& arguments, void* stream);

}  // namespace fusedsc::gpu
