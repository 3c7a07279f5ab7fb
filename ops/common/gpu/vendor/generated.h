/// How the text of a generated kernel begins: FUSEDSC_GENERATED_KERNEL(specifiers, Parameters) { ... }, whose body
/// reads `parameters`.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

#ifdef FUSEDSC_HOST_EXECUTOR
#include "host_executor/generated_host.h"
#else
#define FUSEDSC_GENERATED_KERNEL(specifiers, Parameters) extern "C" specifiers fusedsc_kernel(Parameters parameters)
#endif
