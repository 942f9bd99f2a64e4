# weft::distributed_inspection, the inspection service: the one library of weft that has protobuf. Its
# messages are compiled from the .proto file when CMake runs, so that readers of the sources find the headers
# without a build. gRPC's headers are most of the compile time, so the messages' code is included by a source
# of the floor, as a system header: its warnings are not ours.
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

set(messages ${PROJECT_BINARY_DIR}/generated/inspection_messages.cpp)
file(CONFIGURE OUTPUT ${messages} CONTENT "#include <inspection.pb.cc>\n#include <inspection.grpc.pb.cc>\n")
weft_distributed_library(distributed_inspection inspection SOURCES ${messages})
target_include_directories(weft_floor_distributed_inspection SYSTEM PRIVATE ${WEFT_PROTO_DIR})
target_link_libraries(weft_floor_distributed_inspection PRIVATE weft::protobuf)
# Nothing here is called often, and protobuf's inline functions cost the optimiser much time.
target_compile_options(weft_floor_distributed_inspection PRIVATE $<$<CONFIG:Release>:-O1>)
target_link_libraries(weft_distributed_inspection PUBLIC weft_distributed PRIVATE weft::protobuf)
