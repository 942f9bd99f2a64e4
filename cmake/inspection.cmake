# weft::distributed_inspection, the inspection service: the one library of weft that includes gRPC's headers
# for servers. They are most of its compile time, so a source of the floor includes the messages' code.
weft_proto(messages ${PROJECT_SOURCE_DIR}/distributed/inspection/inspection.proto GRPC)
weft_distributed_library(distributed_inspection inspection SOURCES ${messages})
target_include_directories(weft_floor_distributed_inspection SYSTEM PRIVATE ${WEFT_PROTO_DIR})
target_link_libraries(weft_floor_distributed_inspection PRIVATE weft::grpc_reflection)
target_link_libraries(weft_distributed_inspection PUBLIC weft_distributed PRIVATE weft::grpc_reflection)
