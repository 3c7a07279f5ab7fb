/// Changes of layout on a GPU.
#pragma once

#include "fusedsc/fused/change_layout.h"

namespace fusedsc::gpu {

void change_layout(const ChangeLayoutArguments& arguments, void* stream);

/// Whether the current device's fastest kernels for blocks of 16-bit elements are for channels_last tensors alone.
bool has_channels_last_blocks();

}  // namespace fusedsc::gpu
