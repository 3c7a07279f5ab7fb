/// The one place that knows whose GPU a kernel is compiled for: HIP, CUDA, or the host executor that runs kernels on
/// the CPU for tests. Device code includes this and says no vendor's name itself.
///
/// Each of them brings: FUSEDSC_DEVICE and FUSEDSC_KERNEL(threads, blocks) as function specifiers (`blocks`
/// of so many threads shall fit a multiprocessor at least, where that can be had); wave_size(); thread_index(),
/// block_index() and block_count(); block_barrier(); shuffle_xor(); shared_memory() (shared memory,
/// as much as the launch asked for) and copies to it that may run ahead: kCopyStages, start_copy(), commit_copies(),
/// wait_for_copies(); conversions of 16-bit types; multiply_high(); propagating_min() and _max() (a NaN
/// stays one); and on the host Stream, device_name(), multiprocessors(), shared_memory_limit() (kSharedMemoryLimit is
/// for kernels of one architecture), most_blocks(), resident_blocks() and start().
#pragma once

#if defined(FUSEDSC_HOST_EXECUTOR)
#include "host_executor/vendor_host.h"
#elif defined(__HIPCC__) || defined(__HIP__)
#include "fusedsc/common/gpu/vendor/vendor_hip.h"
#elif defined(__CUDACC__)
#include "fusedsc/common/gpu/vendor/vendor_cuda.h"
#else
#error "Device code is compiled by hipcc, by nvcc, or for the host executor"
#endif
