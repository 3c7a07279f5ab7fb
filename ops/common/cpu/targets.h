/// Which instruction sets the CPU kernels are compiled for. Include before any Highway header.
/// Each one costs compile time, so near-duplicates are left out; scalable vectors (SVE, RVV) cannot be held in the
/// register-block arrays of the kernels, their machines run the NEON or the portable code. The build's baseline on x86
/// is SSSE3 (-mssse3): Highway 1.0 knows nothing between it and scalar code.
#pragma once

// A build may leave out more (the tsan preset does: threads race alike in all of them).
#ifndef FUSEDSC_DISABLED_TARGETS
#define FUSEDSC_DISABLED_TARGETS 0
#endif

#define HWY_DISABLED_TARGETS \
  (FUSEDSC_DISABLED_TARGETS | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
