# The include scheme and the function that makes the object library of one floor.
#
# Each floor's folder is linked to <build>/include/weft/<folder>, so that `#include <weft/kernels/view.h>`
# means the same in the tree and after an installation; the umbrella headers are copied there, since
# installing a link would install the link.
set(WEFT_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${WEFT_INCLUDE_DIR}/weft)
foreach(folder kernels tensor autograd nn optim distributed)
  file(MAKE_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${WEFT_INCLUDE_DIR}/weft/${folder} SYMBOLIC)
endforeach()
foreach(header weft.h cuda.h distributed.h)
  configure_file(cmake/include/weft/${header} ${WEFT_INCLUDE_DIR}/weft/${header} COPYONLY)
endforeach()
configure_file(cmake/include/weft/version.h.in ${WEFT_INCLUDE_DIR}/weft/version.h @ONLY)

# Warnings of weft's own code. Only ever PRIVATE: nothing is forced on a consumer.
function(weft_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  if(WEFT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# Settings of every object library of weft: position independent (one set of objects feeds static and shared),
# warnings, includes.
function(weft_object_library target)
  add_library(${target} OBJECT ${ARGN})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(NOT WEFT_BUILD_TESTS)  # tests look behind WEFT_API; a library built to be used shows nothing else
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  endif()
  target_include_directories(${target} PRIVATE ${WEFT_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE Threads::Threads)
  weft_warnings(${target})
endfunction()

# Where WEFT_UNITY is on, the sources of a target are compiled several at a time: most of their time goes into
# the same headers.
function(weft_unity target)
  if(WEFT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 14)
    # A class of one source file may hold a member of an unnamed namespace's type; the compiler takes the
    # batch for a header.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# weft_floor(<name> <glob>...): object library weft_floor_<name> of the sources that the globs find.
# A floor without sources gets one empty unit, so that every link line looks the same.
function(weft_floor name)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  if(NOT sources)
    set(sources ${PROJECT_BINARY_DIR}/generated/${name}_empty.cpp)
    if(NOT EXISTS ${sources})
      file(WRITE ${sources} "namespace weft {}\n")
    endif()
  endif()
  weft_object_library(weft_floor_${name} ${sources})
  weft_unity(weft_floor_${name})
endfunction()

# Headers in the named folders, as paths below the include folder. Subfolders are not searched.
function(weft_public_headers out)
  set(found)
  foreach(folder ${ARGN})
    file(GLOB headers CONFIGURE_DEPENDS ${WEFT_INCLUDE_DIR}/weft/${folder}/*.h)
    list(APPEND found ${headers})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()
