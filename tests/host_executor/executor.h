/// Runs device kernels on the CPU, for tests: one block (or cluster of blocks) after the other, each GPU thread a
/// fiber, switching at barriers and wave operations. Shared memory starts as NaN; what a block has written around the
/// bytes that it was launched with is found when it ends (guarded_memory.h). Threads that do not all come to the same
/// barrier, or leave others waiting in a wave operation, are an error.
#pragma once

#include <array>
#include <cstddef>
#include <functional>

namespace fusedsc::gpu {

namespace executor {

/// The wave size of the GPU that is played, 32 or 64, from now on.
void set_wave_size(int lanes);

/// How many multiprocessors plans are made for, from now on. Few at first, so that blocks have several items to work
/// off.
void set_multiprocessors(int count);
int multiprocessors();
/// Of any kernel so many blocks are said to fit a multiprocessor at once; 2 at first. A GPU knows by their registers.
void set_resident_blocks(int count);
int resident_blocks();

/// The most shared memory that a block of a kernel for any GPU may ask for, from now on: for any kernel more is an
/// error then, as on a GPU. 0, as at first: 64 KB, and nothing is an error, as kernels for Hopper GPUs have more.
void set_shared_memory_limit(std::size_t bytes);
std::size_t shared_memory_limit();

/// Runs `body` once per thread of each block. Throws std::runtime_error on divergence, and where a block has written
/// outside of its shared memory.
void run(unsigned blocks, unsigned threads, std::size_t shared_memory_bytes, const std::function<void()>& body);

/// Likewise, with so many blocks side by side.
void run_clusters(unsigned blocks, unsigned blocks_of_cluster, unsigned threads, std::size_t shared_memory_bytes,
                  const std::function<void()>& body);

/// What the running thread is.
struct Thread {
  int index = 0;
  unsigned block = 0, blocks = 0;
  int rank = 0;  ///< of the block in its cluster
  int turn = 0;  ///< 0 and 1 alternately, from one barrier of its wave to the next
};
const Thread& current_thread();
void* shared_memory();
/// Of a block of the cluster.
void* shared_memory_of(int rank);
int wave_size();

/// Where the running thread leaves a value for its wave, to be read behind the next wave_barrier(); the places of its
/// neighbours are beside it. Two take turns: a thread that leaves its next value need not wait until all have read this
/// one, and by the one after that they have.
template <class T>
T* place_of_thread() {
  constexpr std::size_t kThreads = 1024, kBlocks = 8;  // of a block, of a cluster: at most
  static std::array<std::array<T, kThreads * kBlocks>, 2> places;
  const Thread& thread = current_thread();
  return places[static_cast<std::size_t>(thread.turn)].data() + static_cast<std::size_t>(thread.rank) * kThreads +
         static_cast<std::size_t>(thread.index);
}

/// Until all threads of the block are there.
void block_barrier();

/// Until all threads of the cluster are there, but for those that have finished.
void cluster_barrier();

/// Until all threads of the wave are there.
void wave_barrier();

/// Until `holds()`, which other threads bring about.
void wait_until(const std::function<bool()>& holds);

/// Until so many threads of the block have come to the barrier of this number (below 16).
void named_barrier(int number, int threads);
/// As one of them that does not wait.
void arrive_at_named_barrier(int number, int threads);

/// Until all threads of the wave are there: hands `value` (of `bytes`) over, and receives that of lane (own ^ mask).
void exchange(void* value, std::size_t bytes, int mask);

}  // namespace executor

}  // namespace fusedsc::gpu
