# Hot CPU kernels, kernels/cpu/isa/*.cpp, are compiled once per instruction set; the best one is chosen at start-up.
#
# Each set has its own namespace (WEFT_ISA_NS) and its own name for Eigen's, so a function compiled with AVX-512 can never be the
# copy that the linker keeps for a machine without it. Fused multiply-add is allowed here and nowhere else; -ffast-math never is.
file(GLOB weft_isa_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/isa/*.cpp)
set(weft_isa_objects)

function(weft_isa_set name)
  if(NOT weft_isa_sources)
    return()
  endif()
  weft_object_library(weft_isa_${name} ${weft_isa_sources})
  # GCC 12's own AVX-512 header reads what it calls an undefined register, and warns of it.
  target_compile_options(weft_isa_${name} PRIVATE -O3 -ffp-contract=fast -Wno-uninitialized -Wno-maybe-uninitialized ${ARGN})
  target_compile_definitions(weft_isa_${name} PRIVATE WEFT_ISA_NS=isa_${name} Eigen=Eigen_isa_${name})
  target_link_libraries(weft_isa_${name} PRIVATE Eigen3::Eigen)
  set(weft_isa_objects ${weft_isa_objects} $<TARGET_OBJECTS:weft_isa_${name}> PARENT_SCOPE)
endfunction()

weft_isa_set(base)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(weft_isa_x86 ON)
  weft_isa_set(avx2 -mavx2 -mfma -mf16c)
  weft_isa_set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
else()
  set(weft_isa_x86 OFF)
endif()
