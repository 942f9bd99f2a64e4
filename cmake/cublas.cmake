# CUDA::cublasLt where the toolkit has no cuBLAS: the one in WEFT_CUBLAS_DIR, a folder with include/cublasLt.h and lib/libcublasLt.so*, such as a Python
# package brings. Read by weft's own build and, behind find_package(CUDAToolkit), by programs that link a static weft.
if(NOT TARGET CUDA::cublasLt AND WEFT_CUBLAS_DIR)
  file(GLOB _weft_cublas ${WEFT_CUBLAS_DIR}/lib/libcublasLt.so*)
  if(_weft_cublas AND EXISTS ${WEFT_CUBLAS_DIR}/include/cublasLt.h)
    list(GET _weft_cublas 0 _weft_cublas)
    add_library(CUDA::cublasLt SHARED IMPORTED)
    set_target_properties(CUDA::cublasLt PROPERTIES IMPORTED_LOCATION ${_weft_cublas} INTERFACE_INCLUDE_DIRECTORIES ${WEFT_CUBLAS_DIR}/include)
  endif()
endif()
