# What LLVM is told of kernels for AMD GPUs, whoever calls it: the build (GpuLanguage.cmake) and, at run time, hiprtc
# (ops/tuning/compiler).

# A kernel's lambdas shall be part of it however large they are: a call keeps arrays, which were to be registers, in
# memory. ROCm's package for CMake sees to that up to now.
set(amd_llvm_options -inline-threshold=1000000)
# From clang 16 on: its loop strength reduction keeps addresses in registers around loops that have none to spare.
set(amd_newer_clang 16)
set(amd_newer_llvm_options -disable-lsr)

# The same as arguments of clang, which compiles for the host, too: it has a word for the first that spares the host.
function(amd_clang_options clang_version options)
  set(all ${amd_llvm_options})
  if(clang_version VERSION_GREATER_EQUAL amd_newer_clang)
    list(APPEND all ${amd_newer_llvm_options})
  endif()
  list(TRANSFORM all PREPEND "-mllvm=")
  list(TRANSFORM all REPLACE "^-mllvm=-inline-threshold=" "-fgpu-inline-threshold=")
  set(${options} ${all} PARENT_SCOPE)
endfunction()

# The same as a header.
function(write_amd_options header)
  foreach(options IN ITEMS amd_llvm_options amd_newer_llvm_options)
    list(TRANSFORM ${options} REPLACE "(.+)" "\"\\1\"")
    list(JOIN ${options} ", " ${options})
  endforeach()
  file(CONFIGURE OUTPUT ${header} @ONLY CONTENT "// Made by cmake/AmdOptions.cmake.
#pragma once

namespace fusedsc::tuning {

inline constexpr const char* kAmdLlvmOptions[] = {@amd_llvm_options@};
inline constexpr int kAmdNewerClang = @amd_newer_clang@;
inline constexpr const char* kAmdNewerLlvmOptions[] = {@amd_newer_llvm_options@};

}  // namespace fusedsc::tuning
")
endfunction()
