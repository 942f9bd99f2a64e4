# kernels/cuda/toolkit/ over the emulation: its callers of cuBLASLt and cuDNN as they are, and these two
# libraries as tests/support/libraries emulates them. Only NVIDIA's headers are needed, so this is built
# without nvcc too.
if(NOT WEFT_HAVE_CUDA)
  find_package(CUDAToolkit QUIET)
  include(cmake/cublas.cmake)
  include(cmake/cudnn.cmake)
endif()
find_path(WEFT_CUDA_RUNTIME_INCLUDE_DIR cuda_runtime.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(WEFT_CUDA_RUNTIME_INCLUDE_DIR)
if(NOT WEFT_CUDA_RUNTIME_INCLUDE_DIR OR NOT WEFT_CUBLASLT_INCLUDE_DIR OR NOT WEFT_HAVE_CUDNN)
  message(STATUS
    "weft: test_simt_libraries left out, the headers of CUDA, cuBLASLt or cuDNN 9 were not found")
  return()
endif()
set(headers ${WEFT_CUDA_RUNTIME_INCLUDE_DIR} ${WEFT_CUBLASLT_INCLUDE_DIR} ${WEFT_CUDNN_INCLUDE_DIR})
list(REMOVE_DUPLICATES headers)

file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/libraries/*.cpp)
set(device_files cublaslt.cpp cudnn.cpp gemm.cpp rnn_cudnn.cpp rnn_cudnn_plan.cpp
  cudnn_graph.cpp attention_graph.cpp attention_cudnn.cpp)
list(TRANSFORM device_files PREPEND ${PROJECT_SOURCE_DIR}/kernels/cuda/toolkit/)
weft_simt_unit(products ${PROJECT_SOURCE_DIR}/kernels/cuda/toolkit library_file cublaslt gemm)
weft_simt_unit(recurrent ${PROJECT_SOURCE_DIR}/kernels/cuda/toolkit cudnn rnn_cudnn rnn_cudnn_plan)
add_library(weft_simt_libraries OBJECT ${files} ${device_files})
weft_unity(weft_simt_libraries GROUPS_ONLY)
weft_warnings(weft_simt_libraries)
target_compile_options(weft_simt_libraries PRIVATE -O1)
target_compile_definitions(weft_simt_libraries PUBLIC WEFT_WITH_CUDNN)
target_include_directories(weft_simt_libraries SYSTEM PUBLIC ${headers})
target_link_libraries(weft_simt_libraries PUBLIC weft_simt)

# Both are opened as files of their own, and find the emulated device in the program.
foreach(library cublaslt cudnn)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/libraries/${library}/*.cpp)
  add_library(weft_test_${library} MODULE ${files})
  weft_unity(weft_test_${library})
  weft_warnings(weft_test_${library})
  target_compile_options(weft_test_${library} PRIVATE -O1)
  target_compile_definitions(weft_test_${library} PRIVATE WEFT_SIMT)
  target_include_directories(weft_test_${library} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${WEFT_INCLUDE_DIR})
  target_include_directories(weft_test_${library} SYSTEM PRIVATE ${headers})
endforeach()
