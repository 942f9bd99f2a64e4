# weft::core: kernels, tensor, autograd, nn, optim. Eigen and oneDNN are build dependencies of kernels/cpu alone.
weft_floor(kernels ${PROJECT_SOURCE_DIR}/kernels/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
target_link_libraries(weft_floor_kernels PRIVATE Eigen3::Eigen)
target_compile_definitions(weft_floor_kernels PRIVATE Eigen=Eigen_weft $<$<BOOL:${weft_isa_x86}>:WEFT_ISA_X86>)
if(WEFT_HAVE_ONEDNN)
  target_compile_definitions(weft_floor_kernels PRIVATE WEFT_WITH_ONEDNN)
  target_link_libraries(weft_floor_kernels PRIVATE weft::onednn)
endif()
foreach(floor tensor autograd nn optim)
  weft_floor(${floor} ${PROJECT_SOURCE_DIR}/${floor}/*.cpp)
endforeach()

# What core and the CUDA library compare when they meet, and the file that a shared core brings to open that library.
set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/backend.cpp ${PROJECT_SOURCE_DIR}/kernels/cuda/device/plugin.cpp PROPERTIES
  COMPILE_DEFINITIONS WEFT_VERSION="${PROJECT_VERSION}")
set(weft_cuda_loader ${PROJECT_SOURCE_DIR}/kernels/shared/cuda_loader.cpp)
set_source_files_properties(${weft_cuda_loader} PROPERTIES
  COMPILE_DEFINITIONS WEFT_SOVERSION="${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")

set(weft_core_objects ${weft_isa_objects})
foreach(floor kernels tensor autograd nn optim)
  list(APPEND weft_core_objects $<TARGET_OBJECTS:weft_floor_${floor}>)
endforeach()
add_library(weft_core ${weft_core_objects})
if(BUILD_SHARED_LIBS)
  target_sources(weft_core PRIVATE ${weft_cuda_loader})
  target_include_directories(weft_core PRIVATE ${WEFT_INCLUDE_DIR})
  weft_warnings(weft_core)
endif()
add_library(weft::core ALIAS weft_core)
weft_public_headers(headers kernels tensor autograd nn optim)
target_sources(weft_core PUBLIC FILE_SET HEADERS BASE_DIRS ${WEFT_INCLUDE_DIR} FILES ${WEFT_INCLUDE_DIR}/weft/weft.h ${WEFT_INCLUDE_DIR}/weft/cuda.h ${headers})
set_target_properties(weft_core PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME core
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(weft_core PUBLIC cxx_std_20)
target_link_libraries(weft_core PUBLIC Threads::Threads PRIVATE ${CMAKE_DL_LIBS})
if(WEFT_HAVE_ONEDNN)
  target_link_libraries(weft_core PRIVATE weft::onednn)
endif()
