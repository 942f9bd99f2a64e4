# tests/cudnn_plans: the graphs of kernels/cuda/toolkit/attention_graph.cpp before NVIDIA's own cuDNN. It
# wants the headers here, and skips its tests with the reason where the library is not found. A stand-in takes
# the place of the driver. The same file of device tests as in test_cuda joins the emulated libraries'
# program.
if(NOT TARGET weft_test_cudnn)
  return()
endif()
if(TARGET test_simt_libraries)
  target_sources(test_simt_libraries PRIVATE ${tests}/cuda/attention_cudnn_test.cpp)
endif()
if(CMAKE_BUILD_TYPE MATCHES "^(Asan|Tsan)$")  # they would watch NVIDIA's code
  return()
endif()

add_library(weft_test_driver MODULE ${tests}/support/libraries/driver/driver.cpp)
weft_warnings(weft_test_driver)
target_link_options(weft_test_driver PRIVATE LINKER:-soname,libcuda.so.1)

set(toolkit ${PROJECT_SOURCE_DIR}/kernels/cuda/toolkit)  # the files of it that need no CUDA
weft_program(test_cudnn_plans weft_test_support ${tests}/cudnn_plans/plans_test.cpp
  ${toolkit}/cudnn_graph.cpp ${toolkit}/attention_graph.cpp)
target_compile_options(test_cudnn_plans PRIVATE ${test_level})
target_compile_definitions(test_cudnn_plans PRIVATE WEFT_WITH_CUDNN
  WEFT_TEST_DRIVER="$<TARGET_FILE:weft_test_driver>")
if(WEFT_CUDNN_FILE)
  target_compile_definitions(test_cudnn_plans PRIVATE WEFT_TEST_CUDNN_FILE="${WEFT_CUDNN_FILE}")
endif()
target_include_directories(test_cudnn_plans SYSTEM PRIVATE
  ${WEFT_CUDA_RUNTIME_INCLUDE_DIR} ${WEFT_CUDNN_INCLUDE_DIR})
target_link_libraries(test_cudnn_plans PRIVATE ${CMAKE_DL_LIBS})
add_dependencies(test_cudnn_plans weft_test_driver)
add_dependencies(weft_tests test_cudnn_plans)
gtest_discover_tests(test_cudnn_plans DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT ${test_seconds}
  PROPERTIES TIMEOUT ${test_seconds} LABELS cudnn_plans)
