# The vendor of the GPUs that kernels are compiled for. The sources are the same: *.hip, in CMake's language CUDA or HIP.
#
# add_gpu_sources(<target> <source>...) adds kernels to a target, which then knows them as FUSEDSC_GPU. What the compiler
# says of their registers is kept beside their objects, *.report, for scripts/gpu_resources.
include(AmdOptions)
include(FindGpuCompiler)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/scripts/keep_compiler_report ${FUSEDSC_CCACHE})
set(CMAKE_HIP_COMPILER_LAUNCHER ${CMAKE_CUDA_COMPILER_LAUNCHER})

if(FUSEDSC_GPU STREQUAL "hip" AND NOT CMAKE_HIP_ARCHITECTURES)
  set(CMAKE_HIP_ARCHITECTURES gfx906 gfx90a gfx1030)
endif()
find_gpu_compiler(${FUSEDSC_GPU} gpu_compiler why_not)
if(NOT gpu_compiler)
  message(FATAL_ERROR "FUSEDSC_GPU is ${FUSEDSC_GPU}, but ${why_not}; or leave FUSEDSC_GPU empty for a build without "
                      "GPU kernels.")
endif()

if(FUSEDSC_GPU STREQUAL "cuda")
  set(CMAKE_CUDA_COMPILER ${gpu_compiler} CACHE FILEPATH "CUDA compiler")
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is version ${CMAKE_CUDA_COMPILER_VERSION}, which has no C++20: install "
                        "the CUDA toolkit, 12 or newer, or name its compiler in the environment, CUDACXX=/path/to/nvcc.")
  endif()
  set(gpu_language CUDA)
  set(has_hopper OFF)  # kernels of its own for compute capability 9.0
  if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
    set(has_hopper ON)
  endif()
  set(gpu_options -Xptxas -v)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)  # a quarter of the size on disk
    list(APPEND gpu_options --compress-mode=size)
  endif()
else()
  # Kept for those who read the build directory: scripts/gpu_resources.
  set(CMAKE_HIP_ARCHITECTURES "${CMAKE_HIP_ARCHITECTURES}" CACHE STRING "AMD GPUs that kernels are compiled for" FORCE)
  set(CMAKE_HIP_COMPILER ${gpu_compiler} CACHE FILEPATH "HIP compiler")
  is_debian_hip_compiler(${gpu_compiler} is_debian)
  if(is_debian)
    # Debian's packages lie where CMake does not look for ROCm.
    set(CMAKE_HIP_COMPILER_ROCM_LIB ${debian_libraries})
    list(APPEND CMAKE_PREFIX_PATH ${debian_libraries})
    debian_hip_flags(${gpu_compiler} "${CMAKE_HIP_ARCHITECTURES}" ${PROJECT_BINARY_DIR}/debian_bitcode flags)
    string(APPEND CMAKE_HIP_FLAGS " ${flags}")
  endif()
  enable_language(HIP)
  set(gpu_language HIP)
  amd_clang_options(${CMAKE_HIP_COMPILER_VERSION} gpu_options)
  list(APPEND gpu_options -Rpass-analysis=kernel-resource-usage)
endif()
set(CMAKE_${gpu_language}_STANDARD 20)
set(CMAKE_${gpu_language}_STANDARD_REQUIRED ON)

function(add_gpu_sources target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE ${gpu_language})
  target_sources(${target} PRIVATE ${ARGN})
  target_compile_definitions(${target} PRIVATE FUSEDSC_GPU $<$<BOOL:${has_hopper}>:FUSEDSC_HOPPER>)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:${gpu_language}>:${gpu_options}>")
endfunction()
