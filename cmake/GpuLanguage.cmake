# The vendor of the GPUs that kernels are compiled for. The sources are the same: *.hip, in CMake's language HIP or CUDA.
#
# add_gpu_sources(<target> <source>...) adds kernels to a target, which then knows them as FUSEDSC_GPU.

if(FUSEDSC_GPU STREQUAL "cuda")
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(gpu_language CUDA)
  # Some hundred kernels; each reports its registers and spills.
  set(gpu_options --threads 0 -Xptxas -v,-warn-spills)
elseif(FUSEDSC_GPU STREQUAL "hip")
  if(NOT CMAKE_HIP_ARCHITECTURES)
    set(CMAKE_HIP_ARCHITECTURES gfx906 gfx90a gfx1030)
  endif()
  enable_language(HIP)
  set(CMAKE_HIP_STANDARD 20)
  set(gpu_language HIP)
  set(gpu_options -Rpass-analysis=kernel-resource-usage -Wno-pass-failed)
else()
  message(FATAL_ERROR "FUSEDSC_GPU is \"${FUSEDSC_GPU}\"; use cuda or hip")
endif()

function(add_gpu_sources target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE ${gpu_language})
  target_sources(${target} PRIVATE ${ARGN})
  target_compile_definitions(${target} PRIVATE FUSEDSC_GPU)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:${gpu_language}>:${gpu_options}>")
endfunction()
