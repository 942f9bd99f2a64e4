# The headers of cuBLASLt, and its file for as far as it is here: the toolkit's, else those of
# WEFT_CUBLAS_DIR. Leaves WEFT_CUBLASLT_INCLUDE_DIR and WEFT_CUBLASLT_FILE behind; the library is opened at
# run time (kernels/cuda/toolkit/cublaslt.h), by this path where the system finds none.
set(WEFT_CUBLAS_DIR "" CACHE PATH
  "Folder with include/cublasLt.h and lib/libcublasLt.so*, for a toolkit without cuBLAS; \
that of a Python package, say")
set(include_dirs ${CUDAToolkit_INCLUDE_DIRS})
set(library_dirs ${CUDAToolkit_LIBRARY_DIR})
if(WEFT_CUBLAS_DIR)
  list(APPEND include_dirs ${WEFT_CUBLAS_DIR}/include)
  list(APPEND library_dirs ${WEFT_CUBLAS_DIR}/lib)
endif()
find_path(WEFT_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${include_dirs})
find_library(WEFT_CUBLASLT_FILE NAMES libcublasLt.so.${CUDAToolkit_VERSION_MAJOR} libcublasLt.so
  HINTS ${library_dirs})
mark_as_advanced(WEFT_CUBLAS_DIR WEFT_CUBLASLT_INCLUDE_DIR WEFT_CUBLASLT_FILE)
