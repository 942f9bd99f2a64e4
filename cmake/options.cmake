# Options, all prefixed WEFT_, and the search for packages on the machine. Leaves WEFT_HAVE_DISTRIBUTED,
# WEFT_HAVE_DISTRIBUTED_SIM, WEFT_HAVE_GLOO, WEFT_HAVE_INSPECTION, WEFT_HAVE_ONEDNN, WEFT_HAVE_ZLIB and
# WEFT_HAVE_CUDA behind.
option(BUILD_SHARED_LIBS "Build shared libraries" OFF)
option(WEFT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(WEFT_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(WEFT_BUILD_BENCH "Build the benchmarks (needs Google Benchmark)" ${PROJECT_IS_TOP_LEVEL})
option(WEFT_TEST_PARTS
  "Run the cases of a test program in twelve processes instead of one each: quicker for all of them, \
but ctest knows none by its name" OFF)
option(WEFT_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
option(WEFT_WERROR "Treat warnings in weft's own code as errors" ${PROJECT_IS_TOP_LEVEL})
option(WEFT_UNITY
  "Compile several sources of weft's libraries at a time, and the tests with a precompiled header: \
quicker as a whole, slower after a change of one file" OFF)
option(WEFT_LANE
  "Build the same-host lane of the distributed layer; without it gRPC carries all messages" ON)
option(WEFT_FUZZ "Build the program `fuzz` of libFuzzer, with the address sanitizer (needs Clang)" OFF)
option(WEFT_CCACHE "Compile through ccache when it is found" ${PROJECT_IS_TOP_LEVEL})

foreach(feature DISTRIBUTED GLOO INSPECTION ONEDNN ZLIB CUDA)
  set(WEFT_${feature} AUTO CACHE STRING "AUTO, ON or OFF")
  set_property(CACHE WEFT_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT WEFT_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "WEFT_${feature} is '${WEFT_${feature}}': it takes AUTO, ON or OFF")
  endif()
endforeach()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
endif()
include(GNUInstallDirs)

if(WEFT_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(WEFT_CCACHE_PROGRAM ccache)
  mark_as_advanced(WEFT_CCACHE_PROGRAM)
  if(WEFT_CCACHE_PROGRAM)
    # It reads the compiler's own list of headers instead of running the preprocessor first. That takes a
    # tenth less time for sources that it has not seen yet. Paths count from this folder. So build folders and
    # clones share the objects that they compile alike, in any language of the shell.
    set(weft_ccache CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${WEFT_CCACHE_PROGRAM})
    set(CMAKE_CXX_COMPILER_LAUNCHER
      env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,locale ${weft_ccache})
  endif()
endif()

if(WEFT_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects no garbage below 4 GB, more than a batch needs. From 128 MB on, its default, that
  # took 8 and 23 % of the time of two batches. From 400 MB on it took 6 and 8 %, and saved 100 MB of memory.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=4000000>)
endif()

if(WEFT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WEFT_FUZZ=ON: libFuzzer comes with Clang, the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=address,fuzzer-no-link)
  add_link_options(-fsanitize=address)
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)

set(WEFT_HAVE_ONEDNN OFF)
if(NOT WEFT_ONEDNN STREQUAL OFF)
  # Not through its own package file: Debian's asks for OpenCL, which the CPU part does not need.
  find_path(WEFT_ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(WEFT_ONEDNN_LIBRARY dnnl)
  mark_as_advanced(WEFT_ONEDNN_INCLUDE_DIR WEFT_ONEDNN_LIBRARY)
  if(WEFT_ONEDNN_INCLUDE_DIR AND WEFT_ONEDNN_LIBRARY)
    set(WEFT_HAVE_ONEDNN ON)
    add_library(weft::onednn UNKNOWN IMPORTED)
    # gomp: the OpenMP it was built with, whose thread count kernels/cpu/gemm.cpp sets and restores.
    set_target_properties(weft::onednn PROPERTIES IMPORTED_LOCATION ${WEFT_ONEDNN_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${WEFT_ONEDNN_INCLUDE_DIR}
      INTERFACE_LINK_LIBRARIES gomp)
  elseif(WEFT_ONEDNN STREQUAL ON)
    message(FATAL_ERROR "WEFT_ONEDNN=ON: oneDNN was not found (Debian: libdnnl-dev)")
  endif()
endif()

set(WEFT_HAVE_ZLIB OFF)
if(NOT WEFT_ZLIB STREQUAL OFF)
  find_package(ZLIB QUIET)
  if(ZLIB_FOUND)
    set(WEFT_HAVE_ZLIB ON)
  elseif(WEFT_ZLIB STREQUAL ON)
    message(FATAL_ERROR "WEFT_ZLIB=ON: zlib was not found (Debian: zlib1g-dev)")
  endif()
endif()

set(WEFT_HAVE_DISTRIBUTED OFF)
set(WEFT_HAVE_DISTRIBUTED_SIM OFF)
if(NOT WEFT_DISTRIBUTED STREQUAL OFF)
  include(cmake/weft-grpc.cmake)
  include(cmake/weft-protobuf.cmake)
  find_program(WEFT_PROTOC protoc)
  mark_as_advanced(WEFT_PROTOC)
  if(TARGET weft::protobuf AND WEFT_PROTOC)
    set(WEFT_HAVE_DISTRIBUTED ON)
    find_package(Boost QUIET COMPONENTS context)
    if(Boost_FOUND)
      set(WEFT_HAVE_DISTRIBUTED_SIM ON)
    else()
      message(STATUS "weft: the simulated network and its tests left out, Boost.Context was not found "
        "(Debian: libboost-context-dev)")
    endif()
  elseif(WEFT_DISTRIBUTED STREQUAL ON)
    message(FATAL_ERROR "WEFT_DISTRIBUTED=ON: gRPC, protobuf or protoc was not found "
      "(Debian: libgrpc++-dev libprotobuf-dev protobuf-compiler)")
  endif()
endif()

# AUTO: when the distributed layer is built and Gloo is found.
set(WEFT_HAVE_GLOO OFF)
if(WEFT_HAVE_DISTRIBUTED AND NOT WEFT_GLOO STREQUAL OFF)
  find_path(WEFT_GLOO_INCLUDE_DIR gloo/allreduce.h)
  find_library(WEFT_GLOO_LIBRARY gloo)
  mark_as_advanced(WEFT_GLOO_INCLUDE_DIR WEFT_GLOO_LIBRARY)
  if(WEFT_GLOO_INCLUDE_DIR AND WEFT_GLOO_LIBRARY)
    set(WEFT_HAVE_GLOO ON)
    add_library(weft::gloo UNKNOWN IMPORTED)
    set_target_properties(weft::gloo PROPERTIES IMPORTED_LOCATION ${WEFT_GLOO_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${WEFT_GLOO_INCLUDE_DIR})
  elseif(WEFT_GLOO STREQUAL ON)
    message(FATAL_ERROR "WEFT_GLOO=ON: Gloo was not found (Debian: libgloo-dev)")
  else()
    message(STATUS "weft: collectives between processes left out, Gloo was not found (Debian: libgloo-dev)")
  endif()
endif()
if(WEFT_GLOO STREQUAL ON AND NOT WEFT_HAVE_DISTRIBUTED)
  message(FATAL_ERROR "WEFT_GLOO=ON needs the distributed layer, which is not built")
endif()

# AUTO: when the distributed layer is built and gRPC's code generator and reflection are found.
set(WEFT_HAVE_INSPECTION OFF)
if(WEFT_HAVE_DISTRIBUTED AND NOT WEFT_INSPECTION STREQUAL OFF)
  find_program(WEFT_GRPC_CPP_PLUGIN grpc_cpp_plugin)
  mark_as_advanced(WEFT_GRPC_CPP_PLUGIN)
  set(packages "(Debian: protobuf-compiler-grpc libgrpc++-dev)")
  if(TARGET weft::grpc_reflection AND WEFT_GRPC_CPP_PLUGIN)
    set(WEFT_HAVE_INSPECTION ON)
  elseif(WEFT_INSPECTION STREQUAL ON)
    message(FATAL_ERROR "WEFT_INSPECTION=ON: grpc_cpp_plugin or gRPC's reflection was not found ${packages}")
  else()
    message(STATUS "weft: the inspection service left out, grpc_cpp_plugin or gRPC's reflection "
      "was not found ${packages}")
  endif()
endif()
if(WEFT_INSPECTION STREQUAL ON AND NOT WEFT_HAVE_DISTRIBUTED)
  message(FATAL_ERROR "WEFT_INSPECTION=ON needs the distributed layer, which is not built")
endif()

# AUTO: when there is a CUDA compiler.
set(WEFT_HAVE_CUDA OFF)
if(NOT WEFT_CUDA STREQUAL OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(WEFT_HAVE_CUDA ON)
  elseif(WEFT_CUDA STREQUAL ON)
    message(FATAL_ERROR "WEFT_CUDA=ON: no CUDA compiler was found (nvcc on PATH, or CUDACXX)")
  endif()
endif()

message(STATUS "weft ${PROJECT_VERSION}: distributed ${WEFT_HAVE_DISTRIBUTED}, "
  "lane ${WEFT_LANE}, Gloo ${WEFT_HAVE_GLOO}, inspection ${WEFT_HAVE_INSPECTION}, "
  "oneDNN ${WEFT_HAVE_ONEDNN}, zlib ${WEFT_HAVE_ZLIB}, CUDA ${WEFT_HAVE_CUDA}, shared ${BUILD_SHARED_LIBS}")
