/// Kernels that were compiled at run time: loaded, asked about and launched, by each vendor's driver.
///
/// Each of them brings: architecture() of the current device, as compilers name it; linked_kernel(text), what there is
/// of it in the program itself (of the host executor's tests); and Module(code, bytes of shared
/// memory), with resident_blocks() and start().
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

#if defined(FUSEDSC_HOST_EXECUTOR)
#include "host_executor/generated_host.h"
#elif defined(__HIPCC__) || defined(__HIP__)
#include "fusedsc/common/gpu/vendor/module_hip.h"
#else
#include "fusedsc/common/gpu/vendor/module_cuda.h"
#endif
