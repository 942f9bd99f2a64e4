# The include scheme and the function that makes the object library of one floor.
#
# Each floor's folder is linked to <build>/include/weft/<folder>. So `#include <weft/kernels/view.h>` means
# the same in the tree and after an installation. The umbrella headers are copied there, since installing a
# link would install the link.
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

# The optimisation of nn, the distributed libraries, examples and benchmarks (docs/architecture.md, Build
# times).
set(weft_caller_options)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(weft_caller_options
    $<$<CONFIG:Release>:-O1;-finline-small-functions;-foptimize-sibling-calls;-fstrict-aliasing>)
endif()

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
# the same headers. A source with the property UNITY_GROUP is compiled with the others of that group. One with
# options of its own is compiled alone; with GROUPS_ONLY all others are too. The units include by relative
# paths, where CMake's own UNITY_BUILD writes absolute ones: a compiler cache serves another checkout too.
# A unit has up to SIZE sources, 22 without it.
function(weft_unity target)
  if(NOT WEFT_UNITY)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 unity GROUPS_ONLY SIZE "")
  if(NOT unity_SIZE)
    set(unity_SIZE 22)
  endif()
  set(folder ${PROJECT_BINARY_DIR}/generated/unity)
  set(kept)
  set(groups)
  set(count 0)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(source ${source} ABSOLUTE)
    get_source_file_property(group ${source} UNITY_GROUP)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options OR NOT source MATCHES "\\.(cpp|cc)$" OR (NOT group AND unity_GROUPS_ONLY))
      list(APPEND kept ${source})
    else()
      if(NOT group)
        math(EXPR group "${count} / ${unity_SIZE}")
        math(EXPR count "${count} + 1")
      endif()
      file(RELATIVE_PATH path ${folder} ${source})
      list(APPEND groups ${group})
      string(APPEND unit_${group} "#include \"${path}\"\n")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group ${groups})
    file(CONFIGURE OUTPUT ${folder}/${target}_${group}.cpp CONTENT "${unit_${group}}")
    list(APPEND kept ${folder}/${target}_${group}.cpp)
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${kept}")
  # A class of one source file may hold a member of an unnamed namespace's type; the compiler takes the batch
  # for a header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
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
  if(name MATCHES "^(nn|distributed.*)$")
    target_compile_options(weft_floor_${name} PRIVATE ${weft_caller_options})
  endif()
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
