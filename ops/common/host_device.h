/// FUSEDSC_HOST_DEVICE: a function for the host and, in a build with kernels for GPUs, for these as well. Not in
/// common/gpu, which is not installed: headers that users include say it, too.
#pragma once

#ifdef FUSEDSC_GPU
#include "fusedsc/common/gpu/vendor/host_device.h"
#else
#define FUSEDSC_HOST_DEVICE inline
#endif
