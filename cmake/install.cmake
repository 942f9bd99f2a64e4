# cmake --install: libraries, real header files, the programs weft-store and weft-certs, the package that
# find_package(weft) reads, and a pkg-config file for each library.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
set(built_components core)
if(WEFT_HAVE_DISTRIBUTED)
  list(APPEND built_components distributed)
endif()
if(WEFT_HAVE_DISTRIBUTED_SIM)
  list(APPEND built_components distributed_sim)
endif()
if(WEFT_HAVE_INSPECTION)
  list(APPEND built_components distributed_inspection)
endif()
if(WEFT_HAVE_CUDA)
  list(APPEND built_components cuda)
endif()

# Builds all that is installed, and nothing else.
add_custom_target(weft_libraries)
foreach(part ${built_components})
  add_dependencies(weft_libraries weft_${part})
  install(TARGETS weft_${part} EXPORT weft-${part}-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
  install(EXPORT weft-${part}-targets NAMESPACE weft:: DESTINATION ${package_dir} COMPONENT dev)
endforeach()

foreach(tool weft-store weft-certs)  # examples that are tools as well
  if(TARGET ${tool})
    add_dependencies(weft_libraries ${tool})
    set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  endif()
endforeach()

set(weft_static ON)
if(BUILD_SHARED_LIBS)
  set(weft_static OFF)
endif()
configure_package_config_file(cmake/weft-config.cmake.in ${PROJECT_BINARY_DIR}/generated/weft-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/weft-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/weft-config.cmake
  ${PROJECT_BINARY_DIR}/generated/weft-config-version.cmake ${PROJECT_SOURCE_DIR}/cmake/weft-grpc.cmake
  ${PROJECT_SOURCE_DIR}/cmake/weft-protobuf.cmake
  DESTINATION ${package_dir} COMPONENT dev)

# A static archive carries no dependencies, so pkg-config has to name them; a shared library brings its own.
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
set(core_private -pthread ${CMAKE_DL_LIBS})
list(TRANSFORM core_private REPLACE "^([a-z]+)$" "-l\\1")
if(WEFT_HAVE_ONEDNN)
  list(APPEND core_private -ldnnl -lgomp)
endif()
if(WEFT_HAVE_ZLIB)
  list(APPEND core_private -lz)
endif()
list(JOIN core_private " " core_private)
string(CONCAT pc_common "prefix=\${pcfiledir}/${to_prefix}\nVersion: ${PROJECT_VERSION}\n"
  "Cflags: -I\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}\n")
set(libs "-L\${prefix}/${CMAKE_INSTALL_LIBDIR}")
if(BUILD_SHARED_LIBS)
  set(core_libs "Libs: ${libs} -lweft_core\nLibs.private: ${core_private}\n")
  set(distributed_libs "Requires: weft = ${PROJECT_VERSION}\nLibs: ${libs} -lweft_distributed\n")
  set(sim_libs)
  set(inspection_libs)
else()
  set(core_libs "Libs: ${libs} -lweft_core ${core_private}\n")
  set(distributed_libs "Requires: weft = ${PROJECT_VERSION} grpc++\nLibs: ${libs}")
  string(APPEND distributed_libs " -lweft_distributed -lprotobuf")
  if(WEFT_HAVE_GLOO)
    string(APPEND distributed_libs " -lgloo")
  endif()
  string(APPEND distributed_libs "\n")
  set(sim_libs " -lboost_context")
  set(inspection_libs " -lgrpc++_reflection -labsl_synchronization")
endif()
file(WRITE ${PROJECT_BINARY_DIR}/generated/weft.pc
  "${pc_common}Name: weft\nDescription: ${PROJECT_DESCRIPTION}\n${core_libs}")
set(pc_files ${PROJECT_BINARY_DIR}/generated/weft.pc)
if(WEFT_HAVE_DISTRIBUTED)
  file(WRITE ${PROJECT_BINARY_DIR}/generated/weft-distributed.pc
    "${pc_common}Name: weft-distributed\n"
    "Description: RPC, distributed autograd and optimizers over weft\n${distributed_libs}")
  list(APPEND pc_files ${PROJECT_BINARY_DIR}/generated/weft-distributed.pc)
endif()
if(WEFT_HAVE_DISTRIBUTED_SIM)
  string(CONCAT sim_libs "Requires: weft-distributed = ${PROJECT_VERSION}\n"
    "Libs: ${libs} -lweft_distributed_sim${sim_libs}\n")
  file(WRITE ${PROJECT_BINARY_DIR}/generated/weft-distributed-sim.pc
    "${pc_common}Name: weft-distributed-sim\n"
    "Description: simulated runtime and network for tests of weft-distributed\n${sim_libs}")
  list(APPEND pc_files ${PROJECT_BINARY_DIR}/generated/weft-distributed-sim.pc)
endif()
if(WEFT_HAVE_INSPECTION)
  string(CONCAT inspection_libs "Requires: weft-distributed = ${PROJECT_VERSION}\n"
    "Libs: ${libs} -lweft_distributed_inspection${inspection_libs}\n")
  file(WRITE ${PROJECT_BINARY_DIR}/generated/weft-distributed-inspection.pc
    "${pc_common}Name: weft-distributed-inspection\n"
    "Description: gRPC service that shows a group of weft-distributed\n${inspection_libs}")
  list(APPEND pc_files ${PROJECT_BINARY_DIR}/generated/weft-distributed-inspection.pc)
  install(FILES ${PROJECT_SOURCE_DIR}/distributed/inspection/inspection.proto
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/distributed/inspection COMPONENT dev)
endif()
if(WEFT_HAVE_CUDA)
  if(BUILD_SHARED_LIBS)
    set(cuda_libs "Requires: weft = ${PROJECT_VERSION}\nLibs: ${libs} -lweft_cuda\n")
  else()
    set(cuda_libs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")  # -ldl and -pthread are core's
    string(CONCAT cuda_libs "Requires: weft = ${PROJECT_VERSION}\n"
      "Libs: ${libs} -Wl,-u,weft_cuda_open,-u,weft_cuda_rules -lweft_cuda ${cuda_libs}\n")
  endif()
  file(WRITE ${PROJECT_BINARY_DIR}/generated/weft-cuda.pc
    "${pc_common}Name: weft-cuda\nDescription: CUDA backend of weft\n${cuda_libs}")
  list(APPEND pc_files ${PROJECT_BINARY_DIR}/generated/weft-cuda.pc)
endif()
install(FILES ${pc_files} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
