#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/gpu/hopper/hopper_host.h"

#include <stdexcept>
#include <string>

#include "fusedsc/common/status.h"

namespace fusedsc::gpu::hopper {

#ifdef FUSEDSC_HOST_EXECUTOR

bool is_hopper() { return wave_size() == 32; }

TensorMap map_of(const void* data, DataType dtype, std::int64_t columns, std::int64_t rows, std::int64_t row_stride,
                 int tile_columns, int tile_rows) {
  const auto halves = static_cast<int>(size_of(dtype) / 2);
  const auto row_bytes = row_stride * static_cast<std::int64_t>(size_of(dtype));
  if (row_bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
    throw std::runtime_error("gpu: rows for TMA do not begin at multiples of 16 bytes");
  }
  TensorMap map = {static_cast<std::uint16_t*>(const_cast<void*>(data)),
                   columns * halves,
                   rows,
                   row_stride * halves,
                   tile_columns * halves,
                   tile_rows};
  map.halves = halves;
  return map;
}

TensorMap map_of_images(const ConstTensorView& images, int tile_channels, int tile_columns, int tile_rows,
                        int tile_images, bool swizzles) {
  const auto halves = static_cast<int>(size_of(images.dtype) / 2);
  return {static_cast<std::uint16_t*>(const_cast<void*>(images.data)),
          images.sizes[1] * halves,
          images.sizes[3],
          images.strides[3] * halves,
          tile_channels * halves,
          tile_columns,
          images.sizes[2],
          images.strides[2] * halves,
          images.sizes[0],
          images.strides[0] * halves,
          tile_rows,
          tile_images,
          swizzles,
          halves};
}

TensorMap map_of_rows(const ConstTensorView& images, int tile_bytes, int tile_rows, int tile_images) {
  const auto halves = static_cast<int>(size_of(images.dtype) / 2);
  return {static_cast<std::uint16_t*>(const_cast<void*>(images.data)),
          images.sizes[1] * images.sizes[3] * halves,
          1,
          0,
          tile_bytes / 2,
          1,
          images.sizes[2],
          images.strides[2] * halves,
          images.sizes[0],
          images.strides[0] * halves,
          tile_rows,
          tile_images,
          false,
          kRowUnit / 2};
}

#else

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking the driver. It wants a context, which the runtime gives a thread only when
/// that first uses the GPU: one that runs autograd's backward may come here before.
Encode encode_function() {
  thread_local bool has_context = false;
  if (!has_context) check_vendor(cudaSetDevice(current_device()), "gpu: making the device ready for this thread");
  has_context = true;
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_vendor(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
                 "gpu: asking the driver for cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess)
      throw std::runtime_error("gpu: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

CUtensorMapDataType type_of(DataType dtype) {
  return dtype == DataType::float32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == DataType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

}  // namespace

bool is_hopper() {
  const int device = current_device();
  return remembered(device, [device] {
           int major = 0;
           check_vendor(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                        "gpu: asking what it can do");
           return major;
         }) == 9;
}

TensorMap map_of(const void* data, DataType dtype, std::int64_t columns, std::int64_t rows, std::int64_t row_stride,
                 int tile_columns, int tile_rows) {
  TensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const auto bytes = static_cast<int>(size_of(dtype));
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride * bytes)};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(tile_columns), static_cast<cuuint32_t>(tile_rows)},
                   steps[] = {1, 1};
  const CUresult result = encode_function()(
      &map, type_of(dtype), 2, const_cast<void*>(data), sizes, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      tile_columns * bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("gpu: describing a tensor to TMA: error " + std::to_string(result));
  }
  return map;
}

TensorMap map_of_images(const ConstTensorView& images, int tile_channels, int tile_columns, int tile_rows,
                        int tile_images, bool swizzles) {
  TensorMap map;
  const auto stride = [&](int axis) {  // that of a single element may be anything
    const auto bytes = static_cast<std::int64_t>(size_of(images.dtype));
    return static_cast<cuuint64_t>(images.sizes[axis] > 1 ? images.strides[axis] * bytes : 16);
  };
  const auto size = [&](int axis) { return static_cast<cuuint64_t>(images.sizes[axis]); };
  const cuuint64_t sizes[] = {size(1), size(3), size(2), size(0)}, strides[] = {stride(3), stride(2), stride(0)};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(tile_channels), static_cast<cuuint32_t>(tile_columns),
                             static_cast<cuuint32_t>(tile_rows), static_cast<cuuint32_t>(tile_images)},
                   steps[] = {1, 1, 1, 1};
  const int tile_row_bytes = tile_channels * static_cast<int>(size_of(images.dtype));
  const CUresult result = encode_function()(&map, type_of(images.dtype), 4, const_cast<void*>(images.data), sizes,
                                            strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                            !swizzles               ? CU_TENSOR_MAP_SWIZZLE_NONE
                                            : tile_row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                                    : CU_TENSOR_MAP_SWIZZLE_64B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("gpu: describing images to TMA: error " + std::to_string(result));
  }
  return map;
}

TensorMap map_of_rows(const ConstTensorView& images, int tile_bytes, int tile_rows, int tile_images) {
  TensorMap map;
  const auto bytes = static_cast<std::int64_t>(size_of(images.dtype));
  const auto stride = [&](int axis) {
    return static_cast<cuuint64_t>(images.sizes[axis] > 1 ? images.strides[axis] * bytes : 16);
  };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(images.sizes[1] * images.sizes[3] * bytes / kRowUnit), 1,
                              static_cast<cuuint64_t>(images.sizes[2]), static_cast<cuuint64_t>(images.sizes[0])};
  const cuuint64_t strides[] = {16, stride(2), stride(0)};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(tile_bytes / kRowUnit), 1, static_cast<cuuint32_t>(tile_rows),
                             static_cast<cuuint32_t>(tile_images)},
                   steps[] = {1, 1, 1, 1};
  const CUresult result =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 4, const_cast<void*>(images.data), sizes, strides, tile,
                        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("gpu: describing rows to TMA: error " + std::to_string(result));
  }
  return map;
}

#endif

bool suits_tma(const ConstTensorView& images) {
  if (!images) return true;
  const auto bytes = static_cast<std::int64_t>(size_of(images.dtype));
  const std::int64_t run = 16 / bytes, most_stride = (std::int64_t{1} << 40) / bytes;
  if (images.strides[1] != 1 || images.sizes[1] % run != 0 || reinterpret_cast<std::uintptr_t>(images.data) % 16 != 0)
    return false;
  for (const int axis : {0, 2, 3}) {
    const std::int64_t stride = images.strides[axis];
    if (images.sizes[axis] > 1 && (stride <= 0 || stride >= most_stride || stride % run != 0)) return false;
  }
  return true;
}

void check_alignment(const char* argument, const void* data, int bytes) {
  check(reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0, argument,
        ": its address is not a multiple of ", bytes, ", but that which the plan was made for is; make one for this");
}

}  // namespace fusedsc::gpu::hopper
#endif
