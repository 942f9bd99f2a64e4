# The CUDA backend compiled by the host compiler for the tests. It is kernels/cuda/{ops,host} and
# optim/rules.cu with WEFT_SIMT, over the emulation of tests/support/simt in place of kernels/cuda/toolkit/. A
# .cu file goes through a generated unit that includes it, since its own language is CUDA in builds that have
# that.
file(GLOB kernel_files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/cuda/ops/*.cu ${PROJECT_SOURCE_DIR}/optim/*.cu)
file(GLOB host_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/ops/*.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/host/*.cpp ${PROJECT_SOURCE_DIR}/tests/support/simt/*.cpp)
set(units)
foreach(file ${kernel_files})
  get_filename_component(name ${file} NAME_WE)
  set(unit ${PROJECT_BINARY_DIR}/generated/simt/${name}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include <weft/${file}>\n")
  list(APPEND units ${unit})
endforeach()
# GCC compiles the kernels, and the bodies in the tests, as for its thread sanitizer. The emulation defines
# the calls for their loads and stores itself (watch.h), so nothing is linked with that option. A pack stays
# one access, since aggregates are not taken apart. The option gives false warnings of unset variables.
set(WEFT_SIMT_WATCH)
string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" simt_flags)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
   AND NOT "${CMAKE_CXX_FLAGS} ${${simt_flags}}" MATCHES "-fsanitize")
  set(WEFT_SIMT_WATCH -fsanitize=thread --param=tsan-instrument-func-entry-exit=0
    --param=tsan-distinguish-volatile=1 -fno-tree-sra -Wno-maybe-uninitialized)
  file(GLOB emulation_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/simt/*.cpp)
  set_source_files_properties(${emulation_files} PROPERTIES
    COMPILE_OPTIONS -fno-sanitize=thread SKIP_PRECOMPILE_HEADERS ON)
endif()
# With WEFT_UNITY, files of about a second each are compiled together, where no two have a name in common.
function(weft_simt_unit name folder)
  list(TRANSFORM ARGN PREPEND ${folder}/)
  list(TRANSFORM ARGN APPEND .cpp)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
endfunction()
set(generated ${PROJECT_BINARY_DIR}/generated/simt)
weft_simt_unit(moves ${generated} rnn_forward copy_each mean_var sort step)
weft_simt_unit(lists ${generated} cumulate nonzero pointwise matmul list)
weft_simt_unit(picks ${generated} arg_reduce radix ternary index random)
weft_simt_unit(draws ${generated} rnn_backward multinomial copy)
weft_simt_unit(host ${PROJECT_SOURCE_DIR}/kernels/cuda/host
  pinned cuda_backend recording trace gemm_in_float)
add_library(weft_simt OBJECT ${units} ${host_files})
weft_unity(weft_simt GROUPS_ONLY)
weft_warnings(weft_simt)
target_compile_options(weft_simt PRIVATE -O1 ${WEFT_SIMT_WATCH})
if(WEFT_SIMT_WATCH)
  target_compile_definitions(weft_simt PRIVATE WEFT_SIMT_WATCHED)
endif()
# A second stack for each of a block's fibers is half of the time.
if(CMAKE_BUILD_TYPE STREQUAL "Asan" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(weft_simt PRIVATE --param=asan-use-after-return=0)
endif()
target_compile_definitions(weft_simt PUBLIC WEFT_SIMT)
target_include_directories(weft_simt PUBLIC ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(weft_simt PUBLIC weft_core)
if(WEFT_HAVE_DISTRIBUTED_SIM)  # the threads of a block are its fibers
  target_link_libraries(weft_simt PUBLIC weft_distributed_sim)
endif()
if(WEFT_UNITY)
  target_precompile_headers(weft_simt PRIVATE <weft/kernels/cuda/host/cuda_backend.h>
    <weft/kernels/cuda/blocks/map.h> <weft/kernels/cuda/blocks/scan.h>)
endif()

# NCCL as tests/support/nccl emulates it. It is opened as a file of its own, and finds the emulated device and
# its settings in the program.
if(WEFT_HAVE_DISTRIBUTED_SIM)
  add_library(weft_simt_nccl OBJECT ${PROJECT_SOURCE_DIR}/tests/support/nccl/settings.cpp)
  weft_warnings(weft_simt_nccl)
  target_link_libraries(weft_simt_nccl PUBLIC weft_simt)
  add_library(weft_test_nccl MODULE ${PROJECT_SOURCE_DIR}/tests/support/nccl/library/nccl.cpp)
  weft_warnings(weft_test_nccl)
  target_compile_definitions(weft_test_nccl PRIVATE WEFT_SIMT)
  target_include_directories(weft_test_nccl PRIVATE ${PROJECT_SOURCE_DIR}/tests ${WEFT_INCLUDE_DIR})
endif()

# In place of cuBLASLt and cuDNN: plain loops, and none.
file(GLOB plain_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/simt/plain/*.cpp)
add_library(weft_simt_plain OBJECT ${plain_files})
weft_warnings(weft_simt_plain)
target_compile_options(weft_simt_plain PRIVATE -O1)
target_link_libraries(weft_simt_plain PUBLIC weft_simt)
