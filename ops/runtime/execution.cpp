#include "fusedsc/runtime/execution.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace fusedsc {

ParallelFor thread_parallel_for(int threads) {
  return [threads](std::int64_t lanes, const std::function<void(std::int64_t)>& body) {
    std::atomic<std::int64_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_guard;
    const auto work = [&] {
      try {
        for (std::int64_t lane = next++; lane < lanes; lane = next++) body(lane);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(failure_guard);
        if (!failure) failure = std::current_exception();
      }
    };
    std::vector<std::thread> pool;
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, lanes); ++i) pool.emplace_back(work);
    work();
    for (auto& thread : pool) thread.join();
    if (failure) std::rethrow_exception(failure);
  };
}

}  // namespace fusedsc
