#include "host_executor/executor.h"

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fusedsc::gpu::executor {
namespace {

namespace context = boost::context;

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr unsigned char kPoison = 0xff;  // NaN in every type
constexpr std::size_t kLargestValue = 8;

enum class State { running, at_barrier, in_exchange, finished };

struct Fiber {
  context::fiber fiber;
  State state = State::running;
  unsigned char offered[kLargestValue];
  std::size_t bytes = 0;
};

/// The block that is running; there is one at a time.
struct Block {
  std::vector<Fiber> fibers;
  std::unique_ptr<unsigned char[]> memory;
  context::fiber scheduler;
  Thread thread;
};

int lanes_of_wave = 32;
context::pooled_fixedsize_stack stacks(kStackBytes);
Block block;

/// Back to the scheduler, which resumes the running thread once it may go on.
void wait(State state) {
  Fiber& self = block.fibers[static_cast<std::size_t>(block.thread.index)];
  self.state = state;
  block.scheduler = std::move(block.scheduler).resume();
}

void resume(std::size_t index) {
  Fiber& fiber = block.fibers[index];
  fiber.state = State::running;
  block.thread.index = static_cast<int>(index);
  fiber.fiber = std::move(fiber.fiber).resume();
}

bool all_are(State state, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (block.fibers[i].state != state) return false;
  }
  return true;
}

[[noreturn]] void fail(const char* what) {
  int waiting = 0, finished = 0;
  for (const Fiber& fiber : block.fibers) {
    waiting += fiber.state == State::at_barrier;
    finished += fiber.state == State::finished;
  }
  throw std::runtime_error(std::string("host executor: block ") + std::to_string(block.thread.block) + ": " + what +
                           ": of " + std::to_string(block.fibers.size()) + " threads " + std::to_string(waiting) +
                           " wait at a barrier and " + std::to_string(finished) + " have finished");
}

void run_block(const std::function<void()>& body) {
  std::exception_ptr failure;
  for (std::size_t i = 0; i < block.fibers.size(); ++i) {
    block.fibers[i].state = State::running;
    block.fibers[i].fiber =
        context::fiber(std::allocator_arg, stacks, [&body, &failure, i](context::fiber&& scheduler) {
          block.scheduler = std::move(scheduler);
          try {
            body();
          } catch (const context::detail::forced_unwind&) {
            throw;
          } catch (...) {
            failure = std::current_exception();
          }
          block.fibers[i].state = State::finished;
          return std::move(block.scheduler);
        });
  }
  for (std::size_t i = 0; i < block.fibers.size(); ++i) resume(i);
  const std::size_t count = block.fibers.size(), lanes = static_cast<std::size_t>(lanes_of_wave);
  while (!failure && !all_are(State::finished, 0, count)) {
    bool moved = false;
    for (std::size_t begin = 0; begin < count; begin += lanes) {
      const std::size_t end = std::min(begin + lanes, count);
      if (!all_are(State::in_exchange, begin, end)) continue;
      // In two steps: all values are there until the last thread has taken its own.
      for (std::size_t i = begin; i < end; ++i) resume(i);
      moved = true;
    }
    if (moved) continue;
    if (!all_are(State::at_barrier, 0, count)) {
      const char* what = "threads wait for others that never come";
      block.fibers.clear();
      fail(what);
    }
    for (std::size_t i = 0; i < count; ++i) resume(i);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void set_wave_size(int lanes) { lanes_of_wave = lanes; }
int wave_size() { return lanes_of_wave; }
const Thread& current_thread() { return block.thread; }
void* block_memory() { return block.memory.get(); }
void block_barrier() { wait(State::at_barrier); }

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
    run_block(body);
  }
}

}  // namespace fusedsc::gpu::executor
