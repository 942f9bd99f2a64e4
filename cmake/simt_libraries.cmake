# kernels/cuda/device/ over the emulation: its callers of cuBLASLt and cuDNN as they are, and these two libraries as tests/support/libraries emulates
# them. Only NVIDIA's headers are needed, so this is built without nvcc too.
if(NOT WEFT_HAVE_CUDA)
  find_package(CUDAToolkit QUIET)
  include(cmake/cudnn.cmake)
endif()
find_path(WEFT_CUDA_RUNTIME_INCLUDE_DIR cuda_runtime.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(WEFT_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${WEFT_CUBLAS_DIR}/include)
mark_as_advanced(WEFT_CUDA_RUNTIME_INCLUDE_DIR WEFT_CUBLASLT_INCLUDE_DIR)
if(NOT WEFT_CUDA_RUNTIME_INCLUDE_DIR OR NOT WEFT_CUBLASLT_INCLUDE_DIR OR NOT WEFT_HAVE_CUDNN)
  message(STATUS "weft: test_simt_libraries left out, the headers of CUDA, cuBLASLt or cuDNN 9 were not found")
  return()
endif()
set(headers ${WEFT_CUDA_RUNTIME_INCLUDE_DIR} ${WEFT_CUBLASLT_INCLUDE_DIR} ${WEFT_CUDNN_INCLUDE_DIR})
list(REMOVE_DUPLICATES headers)

file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/libraries/*.cpp)
add_library(weft_simt_libraries OBJECT ${files} ${PROJECT_SOURCE_DIR}/kernels/cuda/device/cudnn.cpp ${PROJECT_SOURCE_DIR}/kernels/cuda/device/gemm.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/device/rnn_cudnn.cpp)
weft_warnings(weft_simt_libraries)
target_compile_definitions(weft_simt_libraries PUBLIC WEFT_WITH_CUDNN)
target_include_directories(weft_simt_libraries SYSTEM PUBLIC ${headers})
target_link_libraries(weft_simt_libraries PUBLIC weft_simt)

# cuDNN is opened as a file of its own, and finds the emulated device in the program.
file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/libraries/cudnn/*.cpp)
add_library(weft_test_cudnn MODULE ${files})
weft_warnings(weft_test_cudnn)
target_compile_definitions(weft_test_cudnn PRIVATE WEFT_SIMT)
target_include_directories(weft_test_cudnn PRIVATE ${PROJECT_SOURCE_DIR}/tests ${WEFT_INCLUDE_DIR})
target_include_directories(weft_test_cudnn SYSTEM PRIVATE ${headers})
