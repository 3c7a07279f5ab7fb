/// What an operator may use while it runs: threads, a stream and scratch memory, all of them the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace fusedsc {

/// Runs body(lane) for every lane in [0, lanes), possibly at the same time, and returns when all are done.
/// An exception thrown by a lane reaches the caller.
using ParallelFor = std::function<void(std::int64_t lanes, const std::function<void(std::int64_t lane)>& body)>;

struct Execution {
  ParallelFor parallel_for;   ///< empty: the lanes run one after the other
  int threads = 1;            ///< lanes worth using; partial sums, so results, may depend on it
  void* workspace = nullptr;  ///< at least <operator>_workspace_bytes(arguments, threads) bytes, 64-byte aligned
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;  ///< of a GPU (cudaStream_t, hipStream_t): operators put their work there and do not wait
};

/// Runs the lanes as `execution` says.
inline void run_lanes(const Execution& execution, std::int64_t lanes, const std::function<void(std::int64_t)>& body) {
  if (execution.parallel_for && lanes > 1) return execution.parallel_for(lanes, body);
  for (std::int64_t lane = 0; lane < lanes; ++lane) body(lane);
}

/// A ParallelFor on `threads` std::threads, started anew at each call: for programs without a pool of their own.
ParallelFor thread_parallel_for(int threads);

}  // namespace fusedsc
