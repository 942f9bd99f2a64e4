# Precompiled headers of the tests, with WEFT_UNITY. GoogleTest and weft's headers are half of a test's
# compile time, so targets with the same options share one. The support libraries make it for tests of the
# distributed layer and for those that compute.

# weft_test_headers(<target> <core|computing|distributed|simt>)
function(weft_test_headers target kind)
  if(NOT WEFT_UNITY)
    return()
  endif()
  set(maker weft_test_support_core_files)
  if(kind STREQUAL "distributed")
    set(maker weft_test_support_distributed_files)
  elseif(TARGET weft_test_headers_${kind})
    set(maker weft_test_headers_${kind})
  endif()
  # the options and definitions of the makers, which GCC compares
  target_link_libraries(${target} PRIVATE GTest::gtest)
  target_compile_definitions(${target} PRIVATE WEFT_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
  target_precompile_headers(${target} REUSE_FROM ${maker})
endfunction()
# with the options of a test, and no source that changes
function(weft_make_test_headers kind)  # weft_make_test_headers(<kind> <option>...)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/test_headers.cpp CONTENT "")
  add_library(weft_test_headers_${kind} OBJECT ${PROJECT_BINARY_DIR}/generated/test_headers.cpp)
  weft_warnings(weft_test_headers_${kind})
  target_compile_options(weft_test_headers_${kind} PRIVATE ${ARGN})
  target_link_libraries(weft_test_headers_${kind} PRIVATE GTest::gtest weft_core)
  target_compile_definitions(weft_test_headers_${kind} PRIVATE
    WEFT_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
  target_precompile_headers(weft_test_headers_${kind} PRIVATE <gtest/gtest.h> <weft/weft.h>)
endfunction()
if(WEFT_UNITY)
  target_precompile_headers(weft_test_support_core_files PRIVATE <gtest/gtest.h> <weft/weft.h>)
  if(TARGET weft_test_support_distributed_files)
    target_precompile_headers(weft_test_support_distributed_files
      PRIVATE <gtest/gtest.h> <weft/distributed.h>)
  endif()
  if(NOT computing_level STREQUAL test_level)
    weft_make_test_headers(core ${test_level})
  endif()
endif()
