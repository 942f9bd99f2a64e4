# weft::distributed: adds gRPC, protobuf and Boost.Context (fibers of the simulated runtime), all of them private.
# distributed/x.proto becomes <weft/distributed/x.pb.h> and <weft/distributed/x.grpc.pb.h>, compiled without our warnings.
set(proto_out ${PROJECT_BINARY_DIR}/proto)
file(MAKE_DIRECTORY ${proto_out})
file(GLOB protos CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/distributed/*.proto)
set(proto_sources)
foreach(proto ${protos})
  string(REGEX REPLACE "\\.proto$" "" stem weft/${proto})
  set(outputs ${proto_out}/${stem}.pb.cc ${proto_out}/${stem}.pb.h ${proto_out}/${stem}.grpc.pb.cc ${proto_out}/${stem}.grpc.pb.h)
  add_custom_command(OUTPUT ${outputs}
    COMMAND ${Protobuf_PROTOC_EXECUTABLE} -I ${WEFT_INCLUDE_DIR} --cpp_out=${proto_out} --grpc_out=${proto_out}
      --plugin=protoc-gen-grpc=${WEFT_GRPC_PLUGIN} ${WEFT_INCLUDE_DIR}/weft/${proto}
    DEPENDS ${PROJECT_SOURCE_DIR}/${proto} COMMENT "protoc ${proto}" VERBATIM)
  list(APPEND proto_sources ${outputs})
endforeach()

weft_floor(distributed ${PROJECT_SOURCE_DIR}/distributed/*.cpp)
foreach(target weft_floor_distributed)
  target_include_directories(${target} PRIVATE ${proto_out})
  target_link_libraries(${target} PRIVATE gRPC::grpc++ protobuf::libprotobuf Boost::context)
endforeach()
set(objects $<TARGET_OBJECTS:weft_floor_distributed>)
if(proto_sources)
  add_library(weft_proto OBJECT ${proto_sources})
  set_target_properties(weft_proto PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(weft_proto PRIVATE ${proto_out})
  target_compile_options(weft_proto PRIVATE -w)
  target_link_libraries(weft_proto PRIVATE gRPC::grpc++ protobuf::libprotobuf)
  add_dependencies(weft_floor_distributed weft_proto)
  list(APPEND objects $<TARGET_OBJECTS:weft_proto>)
endif()

add_library(weft_distributed ${objects})
add_library(weft::distributed ALIAS weft_distributed)
weft_public_headers(headers distributed)
target_sources(weft_distributed PUBLIC FILE_SET HEADERS BASE_DIRS ${WEFT_INCLUDE_DIR}
  FILES ${WEFT_INCLUDE_DIR}/weft/distributed.h ${headers})
set_target_properties(weft_distributed PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME distributed
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_link_libraries(weft_distributed PUBLIC weft_core PRIVATE gRPC::grpc++ protobuf::libprotobuf Boost::context)
