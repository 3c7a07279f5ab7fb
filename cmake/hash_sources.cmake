# cmake -DOPS=<ops/> -DFAMILIES=<name,name+other> -DVERSION=<of fusedsc> -DHEADER=<file> -P hash_sources.cmake
#
# A header with a hash of each family's sources, so that a measured choice ends when its kernels change. Sources of a
# family bear its name, or that of another family that its kernels are made of.
set(rows "")
string(REPLACE "," ";" FAMILIES "${FAMILIES}")
foreach(family IN LISTS FAMILIES)
  string(REPLACE "+" ";" names ${family})
  list(GET names 0 family)
  set(sources "")
  foreach(name IN LISTS names)
    file(GLOB_RECURSE found RELATIVE ${OPS} ${OPS}/${name}*.h ${OPS}/${name}*.cpp ${OPS}/${name}*.hip)
    list(APPEND sources ${found})
  endforeach()
  list(SORT sources)
  set(hashes "")
  foreach(source IN LISTS sources)
    file(SHA256 ${OPS}/${source} hash)
    string(APPEND hashes "${source} ${hash}\n")
  endforeach()
  string(SHA256 hash "${hashes}")
  string(SUBSTRING ${hash} 0 16 hash)
  string(APPEND rows "    {\"${family}\", \"${hash}\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${HEADER} @ONLY CONTENT [[
// Made by cmake/hash_sources.cmake.
#pragma once

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
