# HIP of Debian's packages: headers and device libraries of ROCm 5.2 (libamdhip64-dev, rocm-device-libs), for that one's
# clang and for newer ones, which know GPUs that ROCm 5.2 does not.
set(debian_libraries /usr/lib/x86_64-linux-gnu)
set(debian_bitcode ${debian_libraries}/amdgcn/bitcode)
# The first one that knows the GPUs is taken: the headers' own before newer ones.
set(debian_clang_versions 15 22)
set(debian_hip_header ${CMAKE_CURRENT_LIST_DIR}/debian_hip.h)
set(debian_packages "clang-22 clang-tools-22 lld-22 llvm-22 libamdhip64-dev rocm-device-libs")

# Those of Debian's compilers that are there with all that they call.
function(find_debian_hip_compilers compilers)
  set(found "")
  foreach(version IN LISTS debian_clang_versions)
    set(folder /usr/lib/llvm-${version}/bin)
    if(EXISTS /usr/bin/clang++-${version} AND EXISTS ${folder}/lld AND EXISTS ${folder}/clang-offload-bundler
       AND EXISTS ${debian_bitcode} AND EXISTS /usr/include/hip/hip_runtime.h)
      list(APPEND found /usr/bin/clang++-${version})
    endif()
  endforeach()
  set(${compilers} "${found}" PARENT_SCOPE)
endfunction()

function(is_debian_hip_compiler compiler result)
  set(${result} OFF PARENT_SCOPE)
  if(compiler MATCHES "^/usr/bin/clang[+][+]-([0-9]+)$" AND CMAKE_MATCH_1 IN_LIST debian_clang_versions)
    set(${result} ON PARENT_SCOPE)
  endif()
endfunction()

# What device libraries ask about a GPU is its number, in a file of its own: gfx942 is 9402, gfx90a 9010, gfx1201 12001.
# Makes it in `folder` for each GPU that Debian's libraries have none for.
function(make_debian_bitcode compiler architectures folder)
  file(GLOB libraries ${debian_bitcode}/*.bc)
  file(MAKE_DIRECTORY ${folder})
  foreach(library IN LISTS libraries)
    cmake_path(GET library FILENAME name)
    file(CREATE_LINK ${library} ${folder}/${name} SYMBOLIC)
  endforeach()
  foreach(architecture IN LISTS architectures)
    string(REGEX REPLACE ":.*" "" architecture ${architecture})  # features like xnack behind it
    if(NOT architecture MATCHES "^gfx([0-9]+)([0-9])([0-9a-f])$")
      message(FATAL_ERROR "CMAKE_HIP_ARCHITECTURES has ${architecture}, which Debian's device libraries cannot be completed "
                          "for: name GPUs, like gfx942 or gfx1201, or install ROCm.")
    endif()
    set(library ${folder}/oclc_isa_version_${CMAKE_MATCH_1}${CMAKE_MATCH_2}${CMAKE_MATCH_3}.bc)
    math(EXPR number "1000 * ${CMAKE_MATCH_1} + 100 * ${CMAKE_MATCH_2} + 0x${CMAKE_MATCH_3}")
    if(NOT EXISTS ${library})
      file(WRITE ${library}.ll
           "@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 ${number}\n")
      execute_process(
        COMMAND ${compiler} --target=amdgcn-amd-amdhsa -Wno-override-module -nogpulib -c -emit-llvm -x ir ${library}.ll -o ${library}
        COMMAND_ERROR_IS_FATAL ANY)
    endif()
  endforeach()
endfunction()

# What a compiler needs to be told, as a string; device libraries that it needs are made in `folder`.
function(debian_hip_flags compiler architectures folder flags)
  set(options "--rocm-path=/usr")
  if(compiler MATCHES "-15$")
    string(APPEND options " --rocm-device-lib-path=${debian_bitcode}")
  else()
    make_debian_bitcode(${compiler} "${architectures}" ${folder})
    # The newest format of code that these device libraries are for.
    string(APPEND options " --rocm-device-lib-path=${folder} -mcode-object-version=5 -include ${debian_hip_header}")
  endif()
  set(${flags} "${options}" PARENT_SCOPE)
endfunction()
