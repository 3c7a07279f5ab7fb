#include "host_executor/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "fusedsc/common/gpu/products/matrix_cores.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/vendor/launch.h"

namespace fusedsc::gpu {
namespace {

class HostExecutor : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { executor::set_wave_size(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(WaveSizes, HostExecutor, testing::Values(32, 64));

TEST_P(HostExecutor, RunsEveryThreadOfEveryBlock) {
  std::vector<int> visits(3 * 70);
  executor::run(3, 70, 0, [&] { ++visits[block_index() * 70 + static_cast<unsigned>(thread_index())]; });
  EXPECT_EQ(visits, std::vector<int>(3 * 70, 1));
}

TEST_P(HostExecutor, BarriersOrderAccessesToSharedMemory) {
  constexpr int kThreads = 128;
  std::vector<int> results(kThreads);
  executor::run(2, kThreads, kThreads * sizeof(int), [&] {
    int* memory = static_cast<int*>(shared_memory());
    const int self = thread_index();
    memory[self] = self;
    for (int reach = kThreads / 2; reach > 0; reach /= 2) {
      block_barrier();
      if (self < reach) memory[self] += memory[self + reach];
    }
    block_barrier();
    results[static_cast<std::size_t>(self)] = memory[0];
  });
  EXPECT_EQ(results, std::vector<int>(kThreads, kThreads * (kThreads - 1) / 2));
}

TEST_P(HostExecutor, WavesAreAsWideAsAsked) {
  const int wave = GetParam();
  std::vector<int> sums(128);
  executor::run(1, 128, 0, [&] { sums[static_cast<std::size_t>(thread_index())] = wave_sum(thread_index(), wave); });
  for (int i = 0; i < 128; ++i) {
    const int first = i / wave * wave;
    EXPECT_EQ(sums[static_cast<std::size_t>(i)], wave * first + wave * (wave - 1) / 2) << i;
  }
}

TEST_P(HostExecutor, SharedMemoryStartsAsNaN) {
  float first = 0;
  executor::run(1, 1, sizeof(float), [&] { first = *static_cast<float*>(shared_memory()); });
  EXPECT_TRUE(std::isnan(first));
}

#ifndef __SANITIZE_ADDRESS__  // which stops at once
/// What the executor says of four blocks, of which the third writes one float at `place` of its shared memory.
std::string said_of_write(std::ptrdiff_t place, std::size_t bytes) {
  try {
    executor::run(4, 32, bytes, [&] {
      if (block_index() == 2 && thread_index() == 5) static_cast<float*>(shared_memory())[place] = 1;
    });
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

TEST_P(HostExecutor, FindsWritesOutsideOfSharedMemory) {
  EXPECT_EQ(said_of_write(0, 64), "");
  EXPECT_EQ(said_of_write(15, 64), "");
  const std::string of_block = "host executor: block 2 wrote outside of its 64 bytes of shared memory: 4 bytes, the ";
  EXPECT_EQ(said_of_write(16, 64), of_block + "first at 64, the last at 67");
  EXPECT_EQ(said_of_write(3014, 64), of_block + "first at 12056, the last at 12059");
  EXPECT_EQ(said_of_write(-1, 64), of_block + "first at -4, the last at -1");
  EXPECT_NE(said_of_write(0, 0), "");
  EXPECT_NE(said_of_write(0, 3), "");
}

TEST_P(HostExecutor, WhatLiesOutsideOfSharedMemoryIsNaN) {
  float behind = 0, before = 0;
  executor::run(1, 1, 3 * sizeof(float), [&] {
    const auto* memory = static_cast<const float*>(shared_memory());
    behind = memory[3];
    before = memory[-1];
  });
  EXPECT_TRUE(std::isnan(behind));
  EXPECT_TRUE(std::isnan(before));
}

TEST_P(HostExecutor, FindsWritesOutsideOfTheMemoryOfABlockOfACluster) {
  const auto write_behind = [] {
    if (executor::current_thread().rank == 1) static_cast<char*>(executor::shared_memory_of(0))[8] = 1;
  };
  EXPECT_THROW(executor::run_clusters(4, 2, 1, 8, write_behind), std::runtime_error);
  EXPECT_NO_THROW(executor::run_clusters(4, 2, 1, 9, write_behind));
}
#endif

TEST_P(HostExecutor, FindsThreadsThatMissABarrier) {
  const auto half_of_them = [] {
    if (thread_index() < 16) block_barrier();
  };
  EXPECT_THROW(executor::run(1, 32, 0, half_of_them), std::runtime_error);
}

TEST_P(HostExecutor, FindsLanesThatMissAWaveOperation) {
  const auto all_but_one = [] {
    if (thread_index() != 5) wave_sum(1, 32);
  };
  EXPECT_THROW(executor::run(1, 64, 0, all_but_one), std::runtime_error);
}

TEST_P(HostExecutor, NamedBarriersAreOfSomeThreads) {
  std::vector<int> seen(128);
  executor::run(1, 128, 2 * sizeof(int), [&] {
    int* memory = static_cast<int*>(shared_memory());
    const int half = thread_index() / 64, rounds = half == 0 ? 3 : 5;  // the halves do not wait for each other
    if (thread_index() % 64 == 0) memory[half] = 0;
    for (int round = 0; round < rounds; ++round) {
      executor::named_barrier(half, 64);
      if (thread_index() % 64 == round) ++memory[half];
    }
    executor::named_barrier(half, 64);
    seen[static_cast<std::size_t>(thread_index())] = memory[half];
  });
  for (int i = 0; i < 128; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i < 64 ? 3 : 5) << i;
}

TEST_P(HostExecutor, FindsThreadsThatMissANamedBarrier) {
  const auto all_but_one = [] {
    if (thread_index() != 5) executor::named_barrier(0, 64);
  };
  EXPECT_THROW(executor::run(1, 64, 0, all_but_one), std::runtime_error);
}

TEST_P(HostExecutor, WaitsUntilAnotherThreadHasSeenToIt) {
  int order = 0, waited_at = 0;
  executor::run(1, 2, 0, [&] {
    if (thread_index() == 0) {
      executor::wait_until([&] { return order == 1; });
      waited_at = ++order;
    } else {
      ++order;
    }
  });
  EXPECT_EQ(waited_at, 2);
  EXPECT_THROW(executor::run(1, 2, 0, [] { executor::wait_until([] { return false; }); }), std::runtime_error);
}

TEST_P(HostExecutor, BlocksOfAClusterReadEachOthersMemory) {
  constexpr unsigned kBlocks = 6, kCluster = 3, kThreads = 64;
  std::vector<float> sums(kBlocks * kThreads);
  executor::run_clusters(kBlocks, kCluster, kThreads, kThreads * sizeof(float), [&] {
    const executor::Thread self = executor::current_thread();
    const auto index = static_cast<std::size_t>(self.index);
    if (index % 2 != 0 && self.rank == 2) return;  // the others do not wait for it
    static_cast<float*>(shared_memory())[index] = static_cast<float>(self.block * kThreads) + static_cast<float>(index);
    executor::cluster_barrier();
    for (int rank = 0; rank < 2; ++rank) {
      sums[self.block * kThreads + index] += static_cast<const float*>(executor::shared_memory_of(rank))[index];
    }
    executor::cluster_barrier();
  });
  for (unsigned i = 0; i < kBlocks * kThreads; ++i) {
    const unsigned index = i % kThreads, block = i / kThreads, first = block / kCluster * kCluster;
    const bool has_left = index % 2 != 0 && block % kCluster == 2;
    EXPECT_EQ(sums[i], has_left ? 0 : static_cast<float>((2 * first + 1) * kThreads + 2 * index)) << i;
  }
}

TEST_P(HostExecutor, FindsThreadsThatMissTheBarrierOfACluster) {
  const auto all_but_one_block = [] {
    if (executor::current_thread().rank == 1) block_barrier();
    if (executor::current_thread().rank == 0) executor::wait_until([] { return false; });
    executor::cluster_barrier();
  };
  EXPECT_THROW(executor::run_clusters(3, 3, 32, 0, all_but_one_block), std::runtime_error);
}

TEST_P(HostExecutor, HandsOnWhatThreadsThrow) {
  EXPECT_THROW(executor::run(1, 4, 0, [] { throw std::domain_error("from a thread"); }), std::domain_error);
}

struct NoParameters {};
void empty_kernel(NoParameters) {}

TEST_P(HostExecutor, LaunchesNoMoreBlocksThanAGpuRuns) {
  const std::int64_t most = most_blocks(1024);
  EXPECT_NO_THROW(launch("empty", empty_kernel, 2, 1024, 0, nullptr, NoParameters()));
  EXPECT_THROW(launch("empty", empty_kernel, most + 1, 1024, 0, nullptr, NoParameters()), Unsupported);
}

TEST(Divisor, DividesAsIntegersDo) {
  for (const std::uint32_t divisor : {1u, 2u, 3u, 5u, 7u, 28u, 49u, 641u, 65535u, 65537u, 12345677u, 0x7fffffffu}) {
    const Divisor by(divisor);
    for (const std::uint32_t number : {0u, 1u, 2u, 6u, 7u, 99u, 65536u, 1234567890u, 0x7ffffffeu, 0x7fffffffu}) {
      std::uint32_t rest = number;
      EXPECT_EQ(by.divide(rest), number / divisor) << number << " / " << divisor;
      EXPECT_EQ(rest, number % divisor) << number << " % " << divisor;
    }
  }
}

}  // namespace
}  // namespace fusedsc::gpu
