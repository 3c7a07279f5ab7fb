# libtorch as the torch package of the Python in use brings it: target Torch::libtorch.
#
# Not find_package(Torch): with a torch built for CUDA, that one insists on a CUDA toolkit, which these operators do not
# need and few users have.
set(Python_FIND_VIRTUALENV FIRST)
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import os, torch
gpu = 'hip' if torch.version.hip else 'cuda' if torch.version.cuda else 'cpu'
chip = ''
if torch.cuda.is_available():
    chip = torch.cuda.get_device_properties(0)
    chip = chip.gcnArchName.split(':')[0] if torch.version.hip else f'{chip.major}{chip.minor}'
print(os.path.dirname(torch.__file__), torch.__version__, int(torch.compiled_with_cxx11_abi()), gpu, chip, sep='|')"
  OUTPUT_VARIABLE torch_facts ERROR_VARIABLE torch_error RESULT_VARIABLE torch_result OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch, which the PyTorch operators are built against. Install "
                      "it there first, and give pip --no-build-isolation, so that the build sees it.\n${torch_error}")
endif()
string(REPLACE "|" ";" torch_facts "${torch_facts}")
list(GET torch_facts 0 torch_dir)
list(GET torch_facts 1 torch_version)
list(GET torch_facts 2 cxx11_abi)
list(GET torch_facts 3 torch_gpu)       # what its build is for: cuda, hip or cpu
list(GET torch_facts 4 torch_gpu_chip)  # the one it sees here, as compilers name it, or empty
message(STATUS "Found torch ${torch_version}: ${torch_dir}")
set(torch_library_dir ${torch_dir}/lib)

# Every part of the build must share the standard library's ABI with libtorch.
add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=${cxx11_abi})
add_library(Torch::libtorch INTERFACE IMPORTED GLOBAL)
target_include_directories(Torch::libtorch INTERFACE ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_link_libraries(Torch::libtorch INTERFACE ${torch_library_dir}/libtorch_cpu.so ${torch_library_dir}/libc10.so)

file(GLOB guards ${torch_dir}/include/c10/cuda/impl/CUDAGuardImpl.h ${torch_dir}/include/c10/hip/impl/HIPGuardImpl.h)
set(torch_hands_out_streams OFF)
foreach(guard IN LISTS guards)
  file(STRINGS ${guard} handles REGEX getStreamNativeHandle)
  if(handles)
    set(torch_hands_out_streams ON)
  endif()
endforeach()
