# weft::distributed adds gRPC and protobuf, and Gloo where it is found, which no header of it names. In the
# same way weft::distributed_sim, the simulated runtime and network for tests, adds Boost.Context, and
# weft::distributed_inspection gRPC's reflection (inspection.cmake). Each room's top-level headers are public;
# those of <room>/inner are not installed.
include(cmake/proto.cmake)
function(weft_distributed_library name)  # weft_distributed_library(<name> <room>... [SOURCES <file>...])
  cmake_parse_arguments(PARSE_ARGV 1 library "" "" SOURCES)
  set(globs ${library_SOURCES})
  set(folders)
  foreach(room ${library_UNPARSED_ARGUMENTS})
    list(APPEND globs ${PROJECT_SOURCE_DIR}/distributed/${room}/*.cpp)
    list(APPEND folders distributed/${room})
  endforeach()
  weft_floor(${name} ${globs})
  add_library(weft_${name} $<TARGET_OBJECTS:weft_floor_${name}>)
  add_library(weft::${name} ALIAS weft_${name})
  weft_public_headers(headers ${folders})
  target_sources(weft_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${WEFT_INCLUDE_DIR} FILES ${headers})
  set_target_properties(weft_${name} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

# A unit for the files that include protobuf's headers.
weft_proto(etcd_messages ${PROJECT_SOURCE_DIR}/distributed/launch/inner/etcd.proto)
set_source_files_properties(${etcd_messages} ${PROJECT_SOURCE_DIR}/distributed/launch/store_etcd.cpp
  ${PROJECT_SOURCE_DIR}/distributed/launch/store_etcd_calls.cpp PROPERTIES UNITY_GROUP etcd)

# A unit of their own, so that those of the other rooms stay as they are with and without Gloo.
file(GLOB collectives CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/distributed/collectives/*.cpp)
set_source_files_properties(${collectives} PROPERTIES UNITY_GROUP collectives)
if(WEFT_HAVE_GLOO)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/distributed/collectives/gloo.cpp PROPERTIES
    COMPILE_OPTIONS -DWEFT_WITH_GLOO)
endif()

# The same-host lane, and the file that takes its place: an object library each, so all other objects are the
# same with and without it. Each is compiled where a target needs it, and Clang reads both.
file(GLOB lane CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/distributed/transport/lane/*.cpp)
set(no_lane ${PROJECT_SOURCE_DIR}/distributed/transport/lane/no_lane.cpp)
list(REMOVE_ITEM lane ${no_lane})
weft_floor(distributed_lane ${lane})
weft_floor(distributed_no_lane ${no_lane})
set_target_properties(weft_floor_distributed_lane weft_floor_distributed_no_lane PROPERTIES
  EXCLUDE_FROM_ALL ON)
set(lane_objects weft_floor_distributed_no_lane)
if(WEFT_LANE)
  set(lane_objects weft_floor_distributed_lane)
endif()

weft_distributed_library(distributed runtime transport wire rpc launch rref autograd optim collectives
  SOURCES ${etcd_messages})
target_sources(weft_distributed PRIVATE $<TARGET_OBJECTS:${lane_objects}>)
target_include_directories(weft_floor_distributed SYSTEM PRIVATE ${WEFT_PROTO_DIR})
target_sources(weft_distributed PUBLIC FILE_SET HEADERS FILES ${WEFT_INCLUDE_DIR}/weft/distributed.h)
target_link_libraries(weft_floor_distributed PRIVATE weft::grpc weft::protobuf)
target_link_libraries(weft_distributed PUBLIC weft_core PRIVATE weft::grpc weft::protobuf)
if(WEFT_HAVE_GLOO)
  target_link_libraries(weft_floor_distributed PRIVATE weft::gloo)
  target_link_libraries(weft_distributed PRIVATE weft::gloo)
endif()

if(WEFT_HAVE_INSPECTION)
  include(cmake/inspection.cmake)
endif()

if(WEFT_HAVE_DISTRIBUTED_SIM)
  weft_distributed_library(distributed_sim sim)
  target_link_libraries(weft_floor_distributed_sim PRIVATE Boost::context)
  target_link_libraries(weft_distributed_sim PUBLIC weft_distributed PRIVATE Boost::context)
endif()
