# weft::core: kernels, tensor, autograd, nn, optim. Eigen and oneDNN are build dependencies of kernels/cpu
# alone.
weft_floor(kernels ${PROJECT_SOURCE_DIR}/kernels/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
target_link_libraries(weft_floor_kernels PRIVATE Eigen3::Eigen)
target_compile_definitions(weft_floor_kernels PRIVATE Eigen=Eigen_weft ${weft_isa_definitions})
if(WEFT_HAVE_ONEDNN)
  target_compile_definitions(weft_floor_kernels PRIVATE WEFT_WITH_ONEDNN)
  target_link_libraries(weft_floor_kernels PRIVATE weft::onednn)
endif()
weft_floor(tensor ${PROJECT_SOURCE_DIR}/tensor/*.cpp ${PROJECT_SOURCE_DIR}/tensor/io/*.cpp)
# Apart, so that the compiler's limits of inlining in the engine's unit do not depend on them.
set_source_files_properties(
  ${PROJECT_SOURCE_DIR}/autograd/tape/compile.cpp ${PROJECT_SOURCE_DIR}/autograd/tape/program.cpp
  ${PROJECT_SOURCE_DIR}/autograd/tape/recorded_calls.cpp ${PROJECT_SOURCE_DIR}/autograd/tape/recorder.cpp
  PROPERTIES UNITY_GROUP compile)
weft_floor(autograd ${PROJECT_SOURCE_DIR}/autograd/tape/*.cpp ${PROJECT_SOURCE_DIR}/autograd/ops/*.cpp)
foreach(floor nn optim)
  weft_floor(${floor} ${PROJECT_SOURCE_DIR}/${floor}/*.cpp)
endforeach()
if(WEFT_HAVE_ZLIB)
  target_compile_definitions(weft_floor_tensor PRIVATE WEFT_WITH_ZLIB)
  target_link_libraries(weft_floor_tensor PRIVATE ZLIB::ZLIB)
endif()

# The file that a shared core brings to open the CUDA library.
set(weft_cuda_loader ${PROJECT_SOURCE_DIR}/kernels/plugin/cuda_loader.cpp)
set_source_files_properties(${weft_cuda_loader} PROPERTIES
  COMPILE_DEFINITIONS WEFT_SOVERSION="${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")

set(weft_core_objects ${weft_isa_objects})
foreach(floor kernels tensor autograd nn optim)
  list(APPEND weft_core_objects $<TARGET_OBJECTS:weft_floor_${floor}>)
endforeach()
add_library(weft_core ${weft_core_objects})
if(weft_isa_targets)
  add_dependencies(weft_core ${weft_isa_targets})
endif()
if(BUILD_SHARED_LIBS)
  target_sources(weft_core PRIVATE ${weft_cuda_loader})
  target_include_directories(weft_core PRIVATE ${WEFT_INCLUDE_DIR})
  weft_warnings(weft_core)
endif()
add_library(weft::core ALIAS weft_core)
weft_public_headers(headers kernels tensor tensor/io autograd/tape autograd/ops nn optim optim/rules)
target_sources(weft_core PUBLIC FILE_SET HEADERS BASE_DIRS ${WEFT_INCLUDE_DIR}
  FILES ${WEFT_INCLUDE_DIR}/weft/weft.h ${WEFT_INCLUDE_DIR}/weft/cuda.h ${WEFT_INCLUDE_DIR}/weft/version.h
  ${headers})
set_target_properties(weft_core PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME core
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(weft_core PUBLIC cxx_std_20)
set(weft_core_libraries ${CMAKE_DL_LIBS})
if(WEFT_HAVE_ONEDNN)
  list(APPEND weft_core_libraries weft::onednn)
endif()
if(WEFT_HAVE_ZLIB)
  list(APPEND weft_core_libraries ZLIB::ZLIB)
endif()
target_link_libraries(weft_core PUBLIC Threads::Threads PRIVATE ${weft_core_libraries})
