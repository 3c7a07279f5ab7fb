/// What a block and a thread may have on each GPU: the limits that the tiling generator leaves candidates out by. Data,
/// so that it needs no GPU.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fusedsc::tuning {

/// Of one compute unit (AMD) or multiprocessor (NVIDIA).
struct DeviceLimits {
  const char* architecture;  ///< as compilers name it: "gfx906", "sm_90"
  int wave;                  ///< threads of a wave
  int shared_bytes;          ///< shared memory of a unit
  int block_shared_bytes;    ///< the most that one block may have of it
  int reserved_bytes;        ///< of each block, which the system takes
  int registers;             ///< of 32 bits, of a unit
  int thread_registers;      ///< the most that a thread may have
  int waves;                 ///< that a unit runs at the same time
  int blocks;                ///< likewise
  int block_threads;         ///< the most of a block
  int matrix_registers;      ///< of those of a thread, that products of matrix cores alone can use (AMD's AGPRs); or 0
};

/// All that are known.
std::span<const DeviceLimits> known_limits();
/// Throws InvalidArgument, naming those that are known, for another one. "sm_90a" has the limits of "sm_90", and
/// "gfx90a:sramecc+:xnack-" those of "gfx90a".
const DeviceLimits& limits_of(std::string_view architecture);

}  // namespace fusedsc::tuning
