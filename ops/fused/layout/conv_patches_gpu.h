/// The GPU's halves of conv_patches.h.
#pragma once

#include "fusedsc/fused/conv_patches.h"

namespace fusedsc::gpu {

void gather_patches(const GatherPatchesArguments& arguments, void* stream);
void scatter_patches(const ScatterPatchesArguments& arguments, void* stream);
void batch_norm_gradient(const BatchNormGradientArguments& arguments, void* stream);

}  // namespace fusedsc::gpu
