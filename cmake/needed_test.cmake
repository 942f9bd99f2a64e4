# Run as a script: fails when one of FILES, programs or shared libraries, is loaded together with a library of
# the CUDA toolkit.
#   cmake -DREADELF= -DFILES= -P needed_test.cmake
if(NOT READELF)
  message("skipped: readelf was not found")
  return()
endif()
foreach(file ${FILES})
  execute_process(COMMAND ${READELF} -d ${file} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" needed "${text}")
  message("${file}: ${needed}")
  if(NOT needed MATCHES "libc\\.so")
    message(FATAL_ERROR "this is not what readelf says of a program")
  endif()
  if(needed MATCHES "libcuda|libcublas|libcudnn|libnv")
    message(FATAL_ERROR "it needs the library of NVIDIA's named above")
  endif()
endforeach()
