# The headers of cuDNN 9 or newer. Leaves WEFT_CUDNN_INCLUDE_DIR and WEFT_HAVE_CUDNN behind; the library is opened at run time
# (kernels/cuda/device/cudnn.h).
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
  else()
    message(STATUS "cuDNN ${cudnn_version} in ${WEFT_CUDNN_INCLUDE_DIR} is not used: weft::cuda takes 9 or newer")
  endif()
endif()
