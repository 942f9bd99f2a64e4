# Hot CPU kernels, kernels/cpu/isa/*.cpp, are compiled once per instruction set; the best one is chosen at
# start-up.
#
# Each set has its own namespace (WEFT_ISA_NS) and its own name for Eigen's. Inline functions of the standard
# library and of other headers remain in common. They are made local to the object of their set where the
# linker can (localize.cmake). Otherwise a copy compiled with AVX-512 could be the one that the linker keeps
# for a machine without it. Fused multiply-add is allowed here and nowhere else; -ffast-math never is.
file(GLOB weft_isa_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/isa/*.cpp)
set(weft_isa_objects)
set(weft_isa_targets)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated)
# Random numbers have the same bits under every set.
set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/isa/random.cpp
  PROPERTIES COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)

# With WEFT_UNITY, sources that read the same headers and take seconds each are compiled together, and those
# of a set share a precompiled header.
function(weft_isa_unit name)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/kernels/cpu/isa/)
  list(TRANSFORM ARGN APPEND .cpp)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
endfunction()
weft_isa_unit(tables unary binary ternary elementwise)
weft_isa_unit(moves copy convert step)
weft_isa_unit(recurrent rnn_forward rnn_backward)
weft_isa_unit(softmax softmax cross_entropy)
weft_isa_unit(lines index scan)
weft_isa_unit(products gemm matmul)

# Where there are better sets, nearly every processor takes one of them. The base set then only has to be
# right: -O1 halves its compile time.
set(weft_isa_x86 OFF)
set(weft_isa_base_level -O3)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(weft_isa_x86 ON)
  set(weft_isa_base_level -O1)
endif()

set(weft_can_localize OFF)
if(CMAKE_LINKER AND CMAKE_NM AND CMAKE_OBJCOPY)
  execute_process(COMMAND ${CMAKE_LINKER} --help OUTPUT_VARIABLE linker_help ERROR_QUIET)
  if(linker_help MATCHES "--force-group-allocation")
    set(weft_can_localize ON)
  endif()
endif()

# weft_isa_set(<name> <-O level> <flag>...): the set's object library; the flags name the set to the compiler.
function(weft_isa_set name level)
  if(NOT weft_isa_sources)
    return()
  endif()
  weft_object_library(weft_isa_${name} ${weft_isa_sources})
  weft_unity(weft_isa_${name} GROUPS_ONLY)
  # Under the sanitizers the compiler takes minutes for one file at that level.
  # GCC 12's own AVX-512 header reads a register that it calls undefined, and warns of it.
  target_compile_options(weft_isa_${name} PRIVATE $<$<NOT:$<CONFIG:Asan,Tsan>>:${level}>
    -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-uninitialized -Wno-maybe-uninitialized ${ARGN})
  target_compile_definitions(weft_isa_${name} PRIVATE WEFT_ISA_NS=isa_${name} Eigen=Eigen_isa_${name})
  target_link_libraries(weft_isa_${name} PRIVATE Eigen3::Eigen)
  if(WEFT_UNITY)
    target_precompile_headers(weft_isa_${name} PRIVATE <weft/kernels/cpu/isa/backend.h>
      <weft/kernels/cpu/isa/elementwise.h> <weft/kernels/cpu/isa/rows.h>)
  endif()
  set(objects $<FILTER:$<TARGET_OBJECTS:weft_isa_${name}>,EXCLUDE,[.][gp]ch$>)
  if(ARGN AND weft_can_localize)
    # Static variables of inline functions must stay weak: "unique" ones cannot be merged once their group is
    # dissolved.
    target_compile_options(weft_isa_${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
    set(out ${PROJECT_BINARY_DIR}/generated/isa_${name}.o)
    set(script ${PROJECT_SOURCE_DIR}/cmake/localize.cmake)
    add_custom_command(OUTPUT ${out}
      COMMAND ${CMAKE_COMMAND} -DLINKER=${CMAKE_LINKER} -DNM=${CMAKE_NM} -DOBJCOPY=${CMAKE_OBJCOPY}
              -DOUT=${out} -P ${script} -- ${objects}
      DEPENDS weft_isa_${name} ${objects} ${script}
      COMMENT "Localising the inline functions of ${name}" COMMAND_EXPAND_LISTS VERBATIM)
    # Makefiles know a generated file only within one target: this one makes it, and all targets that take it
    # depend on this one.
    add_custom_target(weft_isa_${name}_object DEPENDS ${out})
    set(weft_isa_targets ${weft_isa_targets} weft_isa_${name}_object PARENT_SCOPE)
    set_source_files_properties(${out} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    set(objects ${out})
  endif()
  set(weft_isa_objects ${weft_isa_objects} ${objects} PARENT_SCOPE)
endfunction()

set(WEFT_ISA_SETS "avx2;avx512"
  CACHE STRING "Instruction sets beside the base one that an x86-64 build has kernels for")
mark_as_advanced(WEFT_ISA_SETS)
weft_isa_set(base ${weft_isa_base_level})
set(weft_isa_definitions)
set(weft_isa_avx2 -mavx2 -mfma -mf16c)
set(weft_isa_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl ${weft_isa_avx2})
if(weft_isa_x86)
  foreach(name ${WEFT_ISA_SETS})
    weft_isa_set(${name} -O3 ${weft_isa_${name}})
    string(TOUPPER ${name} upper)
    list(APPEND weft_isa_definitions WEFT_ISA_${upper})
  endforeach()
endif()
