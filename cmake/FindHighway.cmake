# Highway, by its own CMake package or by pkg-config, whichever the system's package brings: target hwy::hwy.
include(FindPackageHandleStandardArgs)

find_package(hwy QUIET CONFIG)
if(TARGET hwy::hwy)
  set(Highway_VERSION ${hwy_VERSION})
  set(Highway_LIBRARY hwy::hwy)
else()
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(hwy QUIET IMPORTED_TARGET GLOBAL libhwy)
  endif()
  if(TARGET PkgConfig::hwy)
    add_library(hwy::hwy ALIAS PkgConfig::hwy)
    set(Highway_VERSION ${hwy_VERSION})
    set(Highway_LIBRARY hwy::hwy)
  endif()
endif()

find_package_handle_standard_args(
  Highway REQUIRED_VARS Highway_LIBRARY VERSION_VAR Highway_VERSION
  REASON_FAILURE_MESSAGE "Install libhwy-dev 1.0 or newer (Debian 12, Ubuntu 24.04), or build it from \
https://github.com/google/highway and set CMAKE_PREFIX_PATH to where it is.")
