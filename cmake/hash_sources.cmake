# cmake -DOPS=<ops/> -DFAMILIES=<name,name+other> -DVERSION=<of fusedsc> -DHEADER=<file> -P hash_sources.cmake
#
# A header with a hash of each family's sources, so that a measured choice ends when its kernels change. Sources of a
# family bear its name, or lie in a folder that does; or they are of another family that its kernels are made of. What
# they include counts, too, as far as it is kernels' code: of operators, and the building blocks in common/cpu and
# common/gpu.
cmake_minimum_required(VERSION 3.21)  # a script has no policies of its own otherwise
set(kernels "^(forward|backward|common/cpu|common/gpu)/")
file(GLOB_RECURSE all RELATIVE ${OPS} ${OPS}/*.h ${OPS}/*.cpp ${OPS}/*.hip)
set(rows "")
set(listed "")
string(REPLACE "," ";" FAMILIES "${FAMILIES}")
foreach(family IN LISTS FAMILIES)
  string(REPLACE "+" ";" names ${family})
  list(GET names 0 family)
  set(sources "")
  foreach(name IN LISTS names)
    set(found ${all})
    list(FILTER found INCLUDE REGEX "(^|/)${name}")
    list(APPEND sources ${found})
  endforeach()
  list(REMOVE_DUPLICATES sources)
  set(new ${sources})
  while(new)
    list(POP_FRONT new source)
    if(NOT DEFINED "included_by_${source}")
      file(STRINGS ${OPS}/${source} lines REGEX "^#include \"fusedsc/")
      list(TRANSFORM lines REPLACE "^#include \"fusedsc/([^\"]*)\".*" "\\1")
      list(FILTER lines INCLUDE REGEX "${kernels}")
      set("included_by_${source}" "${lines}")
    endif()
    foreach(included IN LISTS "included_by_${source}")
      if(NOT included IN_LIST sources AND EXISTS ${OPS}/${included})
        list(APPEND sources ${included})
        list(APPEND new ${included})
      endif()
    endforeach()
  endwhile()
  list(SORT sources)
  set(hashes "")
  foreach(source IN LISTS sources)
    file(SHA256 ${OPS}/${source} hash)
    string(APPEND hashes "${source} ${hash}\n")
  endforeach()
  string(SHA256 hash "${hashes}")
  string(SUBSTRING ${hash} 0 16 hash)
  string(APPEND rows "    {\"${family}\", \"${hash}\"},\n")
  list(JOIN sources "\n//   " sources)
  string(APPEND listed "// ${family}:\n//   ${sources}\n")
endforeach()
file(CONFIGURE OUTPUT ${HEADER} @ONLY CONTENT [[
// Made by cmake/hash_sources.cmake, of these sources:
//
@listed@#pragma once

namespace fusedsc::tuning {

struct KernelSources {
  const char *name, *hash;
};
inline constexpr KernelSources kKernelSources[] = {
@rows@};
inline constexpr const char* kLibraryVersion = "@VERSION@";

}  // namespace fusedsc::tuning
]])
file(TOUCH ${HEADER})  # it is as new as what it was made of, though nothing changed
