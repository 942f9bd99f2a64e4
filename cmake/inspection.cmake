# weft::distributed_inspection, the inspection service: the one library of weft that has protobuf. Its
# messages are compiled from the .proto file when CMake runs, so that readers of the sources find the headers
# without a build. The object library of these files feeds the library alone.
set(proto ${PROJECT_SOURCE_DIR}/distributed/inspection/inspection.proto)
set(WEFT_PROTO_DIR ${PROJECT_BINARY_DIR}/generated/proto)
set(made inspection.pb.h inspection.pb.cc inspection.grpc.pb.h inspection.grpc.pb.cc)
list(TRANSFORM made PREPEND ${WEFT_PROTO_DIR}/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${proto})
set(old OFF)
foreach(file ${made})
  if(${proto} IS_NEWER_THAN ${file})  # or the file is missing
    set(old ON)
  endif()
endforeach()
if(old)
  file(MAKE_DIRECTORY ${WEFT_PROTO_DIR})
  cmake_path(GET proto PARENT_PATH folder)
  execute_process(COMMAND ${WEFT_PROTOC} --proto_path=${folder} --cpp_out=${WEFT_PROTO_DIR}
    --grpc_out=${WEFT_PROTO_DIR} --plugin=protoc-gen-grpc=${WEFT_GRPC_CPP_PLUGIN} ${proto}
    COMMAND_ERROR_IS_FATAL ANY)
  file(TOUCH ${made})
endif()

add_library(weft_inspection_proto OBJECT ${WEFT_PROTO_DIR}/inspection.pb.cc
  ${WEFT_PROTO_DIR}/inspection.grpc.pb.cc)
set_target_properties(weft_inspection_proto PROPERTIES POSITION_INDEPENDENT_CODE ON)
if(NOT WEFT_BUILD_TESTS)
  set_target_properties(weft_inspection_proto PROPERTIES CXX_VISIBILITY_PRESET hidden)
endif()
target_include_directories(weft_inspection_proto SYSTEM PUBLIC ${WEFT_PROTO_DIR})
target_link_libraries(weft_inspection_proto PRIVATE weft::protobuf)
target_compile_options(weft_inspection_proto PRIVATE -w)
weft_unity(weft_inspection_proto)

weft_distributed_library(distributed_inspection inspection)
target_include_directories(weft_floor_distributed_inspection SYSTEM PRIVATE ${WEFT_PROTO_DIR})
target_link_libraries(weft_floor_distributed_inspection PRIVATE weft::protobuf)
target_sources(weft_distributed_inspection PRIVATE $<TARGET_OBJECTS:weft_inspection_proto>)
target_link_libraries(weft_distributed_inspection PUBLIC weft_distributed PRIVATE weft::protobuf)
