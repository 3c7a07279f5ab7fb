#include "host_executor/executor.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "host_executor/guarded_memory.h"
#include "host_executor/late_wave.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace fusedsc::gpu::executor {
namespace {

namespace context = boost::context;

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kLargestValue = 32;

/// A stack, of which AddressSanitizer is told whenever it changes.
struct Stack {
  const void* bottom = nullptr;
  std::size_t size = 0;
};

/// Before control leaves for `to`; what ASan keeps of this one goes to `kept` (null: it is not coming back).
void leave_stack([[maybe_unused]] void** kept, [[maybe_unused]] const Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(kept, to.bottom, to.size);
#endif
}

/// Once control is (again) on a stack; `from` is the one it came from.
void arrive_on_stack([[maybe_unused]] void* kept, [[maybe_unused]] Stack& from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(kept, &from.bottom, &from.size);
#endif
}

/// Thrown in threads that wait when their block is given up, so that they end as others do.
struct Abandoned {};

enum class State { running, at_barrier, at_cluster_barrier, at_wave_barrier, until_holds, finished };

struct Fiber {
  context::fiber fiber;
  Stack stack;
  void* kept = nullptr;
  State state = State::running;
  std::function<bool()> holds;  ///< what it waits for
  unsigned char offered[2][kLargestValue];
  int turn = 0;  ///< of these
};

struct Block {
  GuardedMemory memory;
  struct NamedBarrier {
    int arrived = 0, round = 0;
  };
  std::array<NamedBarrier, 16> named;
};

/// The blocks that are running side by side; there is one cluster at a time.
struct Cluster {
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;  ///< of the first block, of the second, and so on
  std::size_t threads = 0;    ///< of a block
  std::size_t running = 0;    ///< which fiber
  unsigned first_block = 0;
  context::fiber scheduler;
  Stack scheduler_stack;
  Thread thread;
  bool abandoned = false;

  Block& block() { return blocks[running / threads]; }
};

int lanes_of_wave = 32;
int multiprocessor_count = 3;
int resident_block_count = 2;
std::size_t shared_memory_bytes_limit = 0;
int late_wave = -1;
context::pooled_fixedsize_stack stacks(kStackBytes);
Cluster cluster;

/// Back to the scheduler, which resumes the running thread once it may go on.
void wait(State state) {
  Fiber& self = cluster.fibers[cluster.running];
  self.state = state;
  leave_stack(&self.kept, cluster.scheduler_stack);
  cluster.scheduler = std::move(cluster.scheduler).resume();
  arrive_on_stack(self.kept, cluster.scheduler_stack);
  if (cluster.abandoned) throw Abandoned();
}

void resume(std::size_t index) {
  Fiber& fiber = cluster.fibers[index];
  fiber.state = State::running;
  cluster.running = index;
  cluster.thread.index = static_cast<int>(index % cluster.threads);
  cluster.thread.rank = static_cast<int>(index / cluster.threads);
  cluster.thread.block = cluster.first_block + static_cast<unsigned>(index / cluster.threads);
  cluster.thread.turn = fiber.turn;
  void* kept = nullptr;
  leave_stack(&kept, fiber.stack);
  fiber.fiber = std::move(fiber.fiber).resume();
  Stack left;
  arrive_on_stack(kept, left);
}

/// Of its block.
bool is_of_late_wave(std::size_t fiber) {
  return static_cast<int>(fiber % cluster.threads) / lanes_of_wave == late_wave;
}

bool all_are(State state, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (cluster.fibers[i].state != state) return false;
  }
  return true;
}

void resume_all(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) resume(i);
}

/// Lets the threads of a block go on that need nobody else: the waves that have exchanged values, or all of them from a
/// barrier; of waves, the late one or all others. Whether there were any.
bool resume_block(std::size_t begin, std::size_t end, bool late) {
  if (all_are(State::at_barrier, begin, end)) {
    resume_all(begin, end);
    return true;
  }
  bool moved = false;
  for (std::size_t i = begin; i < end; ++i) {
    if (is_of_late_wave(i) != late) continue;
    if (cluster.fibers[i].state != State::until_holds || !cluster.fibers[i].holds()) continue;
    resume(i);
    moved = true;
  }
  const auto lanes = static_cast<std::size_t>(lanes_of_wave);
  for (std::size_t first = begin; first < end; first += lanes) {
    const std::size_t last = std::min(first + lanes, end);
    if (is_of_late_wave(first) != late || !all_are(State::at_wave_barrier, first, last)) continue;
    resume_all(first, last);
    moved = true;
  }
  return moved;
}

/// Likewise from a barrier of all blocks, which does not wait for threads that have finished.
bool resume_cluster() {
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < cluster.fibers.size(); ++i) {
    const State state = cluster.fibers[i].state;
    if (state == State::at_cluster_barrier) waiting.push_back(i);
    else if (state != State::finished) return false;
  }
  for (const std::size_t i : waiting) resume(i);
  return !waiting.empty();
}

/// Ends what still waits.
void abandon_cluster() {
  cluster.abandoned = true;
  for (std::size_t i = 0; i < cluster.fibers.size(); ++i) {
    if (cluster.fibers[i].state != State::finished) resume(i);
  }
  cluster.abandoned = false;
}

[[noreturn]] void fail(const char* what) {
  int waiting = 0, finished = 0;
  for (const Fiber& fiber : cluster.fibers) {
    waiting += fiber.state == State::at_barrier || fiber.state == State::at_cluster_barrier;
    finished += fiber.state == State::finished;
  }
  abandon_cluster();
  throw std::runtime_error(std::string("host executor: block ") + std::to_string(cluster.thread.block) + ": " + what +
                           ": of " + std::to_string(cluster.fibers.size()) + " threads " + std::to_string(waiting) +
                           " wait at a barrier and " + std::to_string(finished) + " have finished");
}

/// A thread from its first instruction to its last, on its own stack.
context::fiber run_thread(const std::function<void()>& body, Fiber& self, std::exception_ptr& failure,
                          context::fiber&& scheduler) {
  cluster.scheduler = std::move(scheduler);
  arrive_on_stack(nullptr, cluster.scheduler_stack);
  try {
    body();
  } catch (const Abandoned&) {
  } catch (...) {
    failure = std::current_exception();
  }
  self.state = State::finished;
  leave_stack(nullptr, cluster.scheduler_stack);
  return std::move(cluster.scheduler);
}

void run_cluster(const std::function<void()>& body) {
  std::exception_ptr failure;
  for (Fiber& fiber : cluster.fibers) {
    const context::stack_context memory = stacks.allocate();
    fiber.stack = {static_cast<char*>(memory.sp) - memory.size, memory.size};
    fiber.fiber = context::fiber(
        std::allocator_arg, context::preallocated(memory.sp, memory.size, memory), stacks,
        [&](context::fiber&& scheduler) { return run_thread(body, fiber, failure, std::move(scheduler)); });
  }
  const std::size_t count = cluster.fibers.size();
  resume_all(0, count);
  while (!failure && !all_are(State::finished, 0, count)) {
    bool moved = false;
    for (const bool late : {false, true}) {
      for (std::size_t begin = 0; begin < count && !(late && moved); begin += cluster.threads) {
        moved = resume_block(begin, begin + cluster.threads, late) || moved;
      }
    }
    if (!moved && !resume_cluster()) fail("threads wait for others that never come");
  }
  if (!failure) return;
  abandon_cluster();
  std::rethrow_exception(failure);
}

}  // namespace

void set_wave_size(int lanes) { lanes_of_wave = lanes; }

void set_late_wave(int wave) { late_wave = wave; }

void set_multiprocessors(int count) { multiprocessor_count = count; }
int multiprocessors() { return multiprocessor_count; }
void set_resident_blocks(int count) { resident_block_count = count; }
int resident_blocks() { return resident_block_count; }
void set_shared_memory_limit(std::size_t bytes) { shared_memory_bytes_limit = bytes; }
std::size_t shared_memory_limit() { return shared_memory_bytes_limit > 0 ? shared_memory_bytes_limit : 64 * 1024; }
int wave_size() { return lanes_of_wave; }
const Thread& current_thread() { return cluster.thread; }
void* shared_memory() { return cluster.block().memory.data(); }
void* shared_memory_of(int rank) { return cluster.blocks.at(static_cast<std::size_t>(rank)).memory.data(); }
void block_barrier() { wait(State::at_barrier); }
void cluster_barrier() { wait(State::at_cluster_barrier); }
void wave_barrier() {
  wait(State::at_wave_barrier);
  Fiber& self = cluster.fibers[cluster.running];
  cluster.thread.turn = self.turn = 1 - self.turn;
}

void wait_until(const std::function<bool()>& holds) {
  if (!is_of_late_wave(cluster.running) && holds()) return;
  cluster.fibers[cluster.running].holds = holds;
  wait(State::until_holds);
}

void arrive_at_named_barrier(int number, int threads) {
  auto& barrier = cluster.block().named[static_cast<std::size_t>(number)];
  if (++barrier.arrived != threads) return;
  barrier.arrived = 0;
  ++barrier.round;
}

void named_barrier(int number, int threads) {
  const auto& barrier = cluster.block().named[static_cast<std::size_t>(number)];
  const int round = barrier.round;
  arrive_at_named_barrier(number, threads);
  if (barrier.round == round) wait_until([&barrier, round] { return barrier.round != round; });
}

void exchange(void* value, std::size_t bytes, int mask) {
  const auto index = static_cast<std::size_t>(cluster.thread.index);
  const auto lanes = static_cast<std::size_t>(lanes_of_wave);
  const std::size_t other = index / lanes * lanes + (index % lanes ^ static_cast<std::size_t>(mask));
  const std::size_t first = cluster.running - index;
  if (bytes > kLargestValue || other >= cluster.threads) throw std::logic_error("host executor: no such exchange");
  const int turn = cluster.thread.turn;
  std::memcpy(cluster.fibers[first + index].offered[turn], value, bytes);
  wave_barrier();
  std::memcpy(value, cluster.fibers[first + other].offered[turn], bytes);
}

void run(unsigned blocks, unsigned threads, std::size_t shared_memory_bytes, const std::function<void()>& body) {
  run_clusters(blocks, 1, threads, shared_memory_bytes, body);
}

void run_clusters(unsigned blocks, unsigned blocks_of_cluster, unsigned threads, std::size_t shared_memory_bytes,
                  const std::function<void()>& body) {
  if (blocks % blocks_of_cluster != 0) throw std::logic_error("host executor: a cluster is not whole");
  if (shared_memory_bytes_limit > 0 && shared_memory_bytes > shared_memory_bytes_limit) {
    throw std::runtime_error("host executor: a block asks for " + std::to_string(shared_memory_bytes) +
                             " bytes of shared memory, but there are " + std::to_string(shared_memory_limit()));
  }
  cluster.threads = threads;
  cluster.thread.blocks = blocks;
  for (cluster.first_block = 0; cluster.first_block < blocks; cluster.first_block += blocks_of_cluster) {
    cluster.fibers = std::vector<Fiber>(std::size_t{threads} * blocks_of_cluster);
    cluster.blocks = std::vector<Block>(blocks_of_cluster);
    for (Block& block : cluster.blocks) block.memory = GuardedMemory(shared_memory_bytes);
    run_cluster(body);
    for (unsigned rank = 0; rank < blocks_of_cluster; ++rank) {
      const std::string overrun = cluster.blocks[rank].memory.overrun();
      if (overrun.empty()) continue;
      throw std::runtime_error("host executor: block " + std::to_string(cluster.first_block + rank) + " " + overrun);
    }
  }
}

}  // namespace fusedsc::gpu::executor
