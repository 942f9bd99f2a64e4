# weft::distributed: adds gRPC and Boost.Context (fibers of the simulated runtime), both of them private. gRPC brings protobuf along.
weft_floor(distributed ${PROJECT_SOURCE_DIR}/distributed/*.cpp)
target_link_libraries(weft_floor_distributed PRIVATE gRPC::grpc++ Boost::context)

add_library(weft_distributed $<TARGET_OBJECTS:weft_floor_distributed>)
add_library(weft::distributed ALIAS weft_distributed)
weft_public_headers(headers distributed)
target_sources(weft_distributed PUBLIC FILE_SET HEADERS BASE_DIRS ${WEFT_INCLUDE_DIR}
  FILES ${WEFT_INCLUDE_DIR}/weft/distributed.h ${headers})
set_target_properties(weft_distributed PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME distributed
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_link_libraries(weft_distributed PUBLIC weft_core PRIVATE gRPC::grpc++ Boost::context)
