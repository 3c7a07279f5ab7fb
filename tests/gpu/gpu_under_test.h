/// What the GPU tests run on: the host executor, which plays a GPU of either wave size, or the GPU itself. Each program
/// of tests is linked twice, with one of gpu_on_host.cpp and gpu_on_device.hip.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <ostream>
#include <vector>

#include "reference/memory.h"
#include "reference/tensor.h"

namespace fusedsc::reference {

/// What runs the kernels is a CPU, a thousand times slower than a GPU: then tests take a part of what they would.
bool gpu_is_host_executor();
/// Those that tests shall be run with.
std::vector<int> gpu_wave_sizes();
void use_gpu_wave_size(int lanes);
int gpu_multiprocessors();
/// Of the GPU that the host executor plays; 0: as little as AMD's have. A GPU itself has what it has.
void use_gpu_shared_memory(std::size_t bytes);
/// How often each of AMD's matrix instructions was executed that the pointwise kernels for any GPU multiply numbers of
/// this type with, at the wave size in use: only the host executor counts.
std::vector<long> gpu_matrix_instructions(DataType dtype);
const MemorySource& gpu_memory();

struct GpuTarget {
  DataType dtype;
  int wave_size;
};

inline void PrintTo(const GpuTarget& target, std::ostream* out) {
  *out << name_of(target.dtype) << "_wave" << target.wave_size;
}

/// Every type, and every wave size. Where there are two of these, types of 32 and 16 bits at both, float64 at the last,
/// and bfloat16, which differs from float16 in its conversions alone, at the first.
inline std::vector<GpuTarget> gpu_targets() {
  const std::vector<int> wave_sizes = gpu_wave_sizes();
  std::vector<GpuTarget> targets;
  for (const int wave_size : wave_sizes) {
    for (const DataType dtype : {DataType::float32, DataType::float16}) targets.push_back({dtype, wave_size});
  }
  targets.push_back({DataType::float64, wave_sizes.back()});
  targets.push_back({DataType::bfloat16, wave_sizes.front()});
  return targets;
}

/// Tests whose tensors are the GPU's. They are aligned, so that vectors of channels are met; align_tensors(false) meets
/// the other kernels.
class OnGpu : public testing::TestWithParam<GpuTarget> {
 protected:
  static void SetUpTestSuite() { use_memory(gpu_memory()); }
  void SetUp() override {
    use_gpu_wave_size(GetParam().wave_size);
    align_tensors(true);
  }
  void TearDown() override { align_tensors(false); }
};

}  // namespace fusedsc::reference
