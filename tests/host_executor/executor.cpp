#include "host_executor/executor.h"

#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace fusedsc::gpu::executor {
namespace {

namespace context = boost::context;

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr unsigned char kPoison = 0xff;  // NaN in every type
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

enum class State { running, at_barrier, in_exchange, until_holds, finished };

struct Fiber {
  context::fiber fiber;
  Stack stack;
  void* kept = nullptr;
  State state = State::running;
  std::function<bool()> holds;  ///< what it waits for
  unsigned char offered[kLargestValue];
  std::size_t bytes = 0;
};

/// The block that is running; there is one at a time.
struct Block {
  std::vector<Fiber> fibers;
  std::unique_ptr<unsigned char[]> memory;
  context::fiber scheduler;
  Stack scheduler_stack;
  Thread thread;
  bool abandoned = false;
  struct NamedBarrier {
    int arrived = 0, round = 0;
  };
  std::array<NamedBarrier, 16> named;
};

int lanes_of_wave = 32;
context::pooled_fixedsize_stack stacks(kStackBytes);
Block block;

/// Back to the scheduler, which resumes the running thread once it may go on.
void wait(State state) {
  Fiber& self = block.fibers[static_cast<std::size_t>(block.thread.index)];
  self.state = state;
  leave_stack(&self.kept, block.scheduler_stack);
  block.scheduler = std::move(block.scheduler).resume();
  arrive_on_stack(self.kept, block.scheduler_stack);
  if (block.abandoned) throw Abandoned();
}

void resume(std::size_t index) {
  Fiber& fiber = block.fibers[index];
  fiber.state = State::running;
  block.thread.index = static_cast<int>(index);
  void* kept = nullptr;
  leave_stack(&kept, fiber.stack);
  fiber.fiber = std::move(fiber.fiber).resume();
  Stack left;
  arrive_on_stack(kept, left);
}

bool all_are(State state, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (block.fibers[i].state != state) return false;
  }
  return true;
}

/// Ends what still waits.
void abandon_block() {
  block.abandoned = true;
  for (std::size_t i = 0; i < block.fibers.size(); ++i) {
    if (block.fibers[i].state != State::finished) resume(i);
  }
  block.abandoned = false;
}

[[noreturn]] void fail(const char* what) {
  int waiting = 0, finished = 0;
  for (const Fiber& fiber : block.fibers) {
    waiting += fiber.state == State::at_barrier;
    finished += fiber.state == State::finished;
  }
  abandon_block();
  throw std::runtime_error(std::string("host executor: block ") + std::to_string(block.thread.block) + ": " + what +
                           ": of " + std::to_string(block.fibers.size()) + " threads " + std::to_string(waiting) +
                           " wait at a barrier and " + std::to_string(finished) + " have finished");
}

/// A thread from its first instruction to its last, on its own stack.
context::fiber run_thread(const std::function<void()>& body, Fiber& self, std::exception_ptr& failure,
                          context::fiber&& scheduler) {
  block.scheduler = std::move(scheduler);
  arrive_on_stack(nullptr, block.scheduler_stack);
  try {
    body();
  } catch (const Abandoned&) {
  } catch (...) {
    failure = std::current_exception();
  }
  self.state = State::finished;
  leave_stack(nullptr, block.scheduler_stack);
  return std::move(block.scheduler);
}

void run_block(const std::function<void()>& body) {
  std::exception_ptr failure;
  for (Fiber& fiber : block.fibers) {
    const context::stack_context memory = stacks.allocate();
    fiber.stack = {static_cast<char*>(memory.sp) - memory.size, memory.size};
    fiber.fiber = context::fiber(
        std::allocator_arg, context::preallocated(memory.sp, memory.size, memory), stacks,
        [&](context::fiber&& scheduler) { return run_thread(body, fiber, failure, std::move(scheduler)); });
  }
  for (std::size_t i = 0; i < block.fibers.size(); ++i) resume(i);
  const std::size_t count = block.fibers.size(), lanes = static_cast<std::size_t>(lanes_of_wave);
  while (!failure && !all_are(State::finished, 0, count)) {
    bool moved = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (block.fibers[i].state != State::until_holds || !block.fibers[i].holds()) continue;
      resume(i);
      moved = true;
    }
    for (std::size_t begin = 0; begin < count; begin += lanes) {
      const std::size_t end = std::min(begin + lanes, count);
      if (!all_are(State::in_exchange, begin, end)) continue;
      // In two steps: all values are there until the last thread has taken its own.
      for (std::size_t i = begin; i < end; ++i) resume(i);
      moved = true;
    }
    if (moved) continue;
    if (!all_are(State::at_barrier, 0, count)) fail("threads wait for others that never come");
    for (std::size_t i = 0; i < count; ++i) resume(i);
  }
  if (!failure) return;
  abandon_block();
  std::rethrow_exception(failure);
}

}  // namespace

void set_wave_size(int lanes) { lanes_of_wave = lanes; }
int wave_size() { return lanes_of_wave; }
const Thread& current_thread() { return block.thread; }
void* block_memory() { return block.memory.get(); }
void block_barrier() { wait(State::at_barrier); }
void wave_barrier() { wait(State::in_exchange); }

void wait_until(const std::function<bool()>& holds) {
  if (holds()) return;
  block.fibers[static_cast<std::size_t>(block.thread.index)].holds = holds;
  wait(State::until_holds);
}

void named_barrier(int number, int threads) {
  auto& barrier = block.named[static_cast<std::size_t>(number)];
  const int round = barrier.round;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.round;
  } else {
    wait_until([&barrier, round] { return barrier.round != round; });
  }
}

void exchange(void* value, std::size_t bytes, int mask) {
  const auto index = static_cast<std::size_t>(block.thread.index);
  const auto lanes = static_cast<std::size_t>(lanes_of_wave);
  const std::size_t other = index / lanes * lanes + (index % lanes ^ static_cast<std::size_t>(mask));
  if (bytes > kLargestValue || other >= block.fibers.size()) throw std::logic_error("host executor: no such exchange");
  std::memcpy(block.fibers[index].offered, value, bytes);
  wait(State::in_exchange);
  std::memcpy(value, block.fibers[other].offered, bytes);
  wait(State::in_exchange);  // nobody offers anew before all have taken
}

void run(unsigned blocks, unsigned threads, std::size_t block_memory_bytes, const std::function<void()>& body) {
  for (unsigned index = 0; index < blocks; ++index) {
    block.fibers = std::vector<Fiber>(threads);
    block.memory = std::make_unique<unsigned char[]>(block_memory_bytes);
    std::memset(block.memory.get(), kPoison, block_memory_bytes);
    block.thread = {0, index, blocks};
    block.named = {};
    run_block(body);
  }
}

}  // namespace fusedsc::gpu::executor
