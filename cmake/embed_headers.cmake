# cmake -DOPS=<ops/> -DROOTS=<header,header> -DSOURCE=<file> -P embed_headers.cmake
#
# A source file with the text of the device headers that generated kernels include, and of all that these include, for
# compilers at run time (ops/tuning/compiler). Headers of the standard library are those of ops/tuning/compiler/std.
cmake_minimum_required(VERSION 3.21)  # a script has no policies of its own otherwise

set(rows "")
set(hashes "")
set(seen "")

function(embed name path)
  file(READ ${path} text)
  file(SHA256 ${path} hash)
  set(rows "${rows}    {\"${name}\", R\"fusedsc(${text})fusedsc\"},\n" PARENT_SCOPE)
  set(hashes "${hashes}${name} ${hash}\n" PARENT_SCOPE)
endfunction()

string(REPLACE "," ";" queue "${ROOTS}")
while(queue)
  list(POP_FRONT queue header)
  if(header IN_LIST seen)
    continue()
  endif()
  list(APPEND seen ${header})
  embed(fusedsc/${header} ${OPS}/${header})
  file(STRINGS ${OPS}/${header} lines REGEX "^#include \"fusedsc/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"fusedsc/([^\"]+)\".*" "\\1" included "${line}")
    list(APPEND queue ${included})
  endforeach()
endwhile()
file(GLOB standard RELATIVE ${OPS}/tuning/compiler/std ${OPS}/tuning/compiler/std/*.h)
foreach(header IN LISTS standard)
  string(REGEX REPLACE "\\.h$" "" name ${header})
  embed(${name} ${OPS}/tuning/compiler/std/${header})
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${SOURCE} "// Made by cmake/embed_headers.cmake.
#include \"fusedsc/tuning/compiler/device_headers.h\"

namespace fusedsc::tuning {
namespace {

constexpr DeviceHeader kHeaders[] = {
${rows}};

}  // namespace

std::span<const DeviceHeader> device_headers() { return kHeaders; }
const char* device_headers_hash() { return \"${hash}\"; }

}  // namespace fusedsc::tuning
")
