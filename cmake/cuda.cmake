# weft::cuda: the CUDA backend, a library of its own. Kernels are compiled by nvcc for
# WEFT_CUDA_ARCHITECTURES; the callers of the CUDA libraries stand in kernels/cuda/toolkit/. A shared core
# opens it when a CUDA device is first asked for. Programs need not link it unless they bring kernels of their
# own. Linked to a program of a static build it registers itself. `-u` makes the linker take the files that do
# (the backend's and optim/rules.cu), and with them everything else.
set(WEFT_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90"
  CACHE STRING "Compute capabilities; the last one as PTX too")
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${WEFT_CUDA_ARCHITECTURES})
endif()
if(weft_ccache AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER env ${weft_ccache})
endif()
set(CMAKE_CUDA_STANDARD 20)
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
include(cmake/cublas.cmake)
if(NOT WEFT_CUBLASLT_INCLUDE_DIR)
  message(FATAL_ERROR "weft: cublasLt.h is not in the CUDA toolkit (${CUDAToolkit_INCLUDE_DIRS}); "
    "install the headers of cuBLAS, or set WEFT_CUBLAS_DIR to a folder with "
    "include/cublasLt.h (now '${WEFT_CUBLAS_DIR}')")
endif()
include(cmake/cudnn.cmake)
foreach(library CUBLASLT CUDNN)
  string(TOLOWER ${library} name)
  if(WEFT_${library}_FILE)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/toolkit/${name}.cpp
      PROPERTIES COMPILE_DEFINITIONS "WEFT_${library}_BUILT=\"${WEFT_${library}_FILE}\"")
  endif()
endforeach()
# The runtime is linked statically and the other libraries are opened when they are needed, so a program
# starts where there is no toolkit.
set(weft_cuda_libraries CUDA::cudart_static ${CMAKE_DL_LIBS})

set(cuda ${PROJECT_SOURCE_DIR}/kernels/cuda)
file(GLOB cuda_files CONFIGURE_DEPENDS ${cuda}/ops/*.cu ${cuda}/ops/*.cpp ${cuda}/host/*.cpp
  ${cuda}/toolkit/*.cpp ${cuda}/toolkit/*.cu ${PROJECT_SOURCE_DIR}/optim/*.cu)
set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/ops/random.cu
  PROPERTIES COMPILE_OPTIONS --fmad=false)  # the CPU's numbers, bit for bit
add_library(weft_cuda_objects OBJECT ${cuda_files})
set_target_properties(weft_cuda_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_options(weft_cuda_objects PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -Xcompiler=-Wall,-Wextra>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
if(WEFT_WERROR)
  target_compile_options(weft_cuda_objects PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Werror> $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
target_include_directories(weft_cuda_objects PRIVATE ${WEFT_INCLUDE_DIR})
target_include_directories(weft_cuda_objects SYSTEM PRIVATE ${WEFT_CUBLASLT_INCLUDE_DIR})
if(WEFT_HAVE_CUDNN)
  target_compile_definitions(weft_cuda_objects PRIVATE WEFT_WITH_CUDNN)
  target_include_directories(weft_cuda_objects PRIVATE ${WEFT_CUDNN_INCLUDE_DIR})
endif()
target_link_libraries(weft_cuda_objects PRIVATE ${weft_cuda_libraries})

add_library(weft_cuda $<TARGET_OBJECTS:weft_cuda_objects>)
add_library(weft::cuda ALIAS weft_cuda)
weft_public_headers(headers kernels/cuda)  # those of WEFT_STEP_CUDA
target_sources(weft_cuda PUBLIC FILE_SET HEADERS BASE_DIRS ${WEFT_INCLUDE_DIR} FILES ${headers})
set_target_properties(weft_cuda PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME cuda
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_link_libraries(weft_cuda PUBLIC weft_core PRIVATE ${weft_cuda_libraries})
target_compile_options(weft_cuda INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)  # kernels/math.h, which rules include
if(NOT BUILD_SHARED_LIBS)
  target_link_options(weft_cuda INTERFACE LINKER:-u,weft_cuda_open,-u,weft_cuda_rules)
endif()

# weft_use_cuda(<target>): the program finds CUDA devices.
function(weft_use_cuda target)
  if(BUILD_SHARED_LIBS)
    add_dependencies(${target} weft_cuda)
  else()
    target_link_libraries(${target} PRIVATE weft_cuda)
  endif()
endfunction()
