# The headers of cuDNN 9 or newer, and its file for as far as it is here. Leaves
# WEFT_CUDNN_INCLUDE_DIR, WEFT_HAVE_CUDNN and WEFT_CUDNN_FILE behind; the library is opened at run time
# (kernels/cuda/toolkit/cudnn.h), by this path where the system finds none.
find_path(WEFT_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(WEFT_CUDNN_INCLUDE_DIR)
set(WEFT_HAVE_CUDNN OFF)
if(WEFT_CUDNN_INCLUDE_DIR)
  set(cudnn_version "before 8")  # its number stood elsewhere
  if(EXISTS ${WEFT_CUDNN_INCLUDE_DIR}/cudnn_version.h)
    file(STRINGS ${WEFT_CUDNN_INCLUDE_DIR}/cudnn_version.h cudnn_version REGEX "^#define CUDNN_MAJOR +[0-9]+")
    string(REGEX MATCH "[0-9]+" cudnn_version "${cudnn_version}")
  endif()
  if(cudnn_version MATCHES "^[0-9]+$" AND cudnn_version GREATER_EQUAL 9)
    set(WEFT_HAVE_CUDNN ON)
    find_library(WEFT_CUDNN_FILE NAMES libcudnn.so.${cudnn_version}
      HINTS ${WEFT_CUDNN_INCLUDE_DIR}/../lib ${CUDAToolkit_LIBRARY_DIR})
    mark_as_advanced(WEFT_CUDNN_FILE)
  else()
    message(STATUS
      "cuDNN ${cudnn_version} in ${WEFT_CUDNN_INCLUDE_DIR} is not used: weft::cuda takes 9 or newer")
  endif()
endif()
