# weft::protobuf, protobuf and gRPC's reflection for the inspection service: for weft's own build and,
# installed beside the package file, for static consumers. It needs weft::grpc. Libraries are found by name,
# for the reason that weft-grpc.cmake tells. gRPC's headers for servers lock a mutex of Abseil.
if(TARGET weft::grpc AND NOT TARGET weft::protobuf)
  find_path(WEFT_PROTOBUF_INCLUDE_DIR google/protobuf/message.h)
  find_library(WEFT_PROTOBUF_LIBRARY protobuf)
  find_library(WEFT_GRPCPP_REFLECTION_LIBRARY grpc++_reflection)
  find_library(WEFT_ABSL_LIBRARY absl_synchronization)
  mark_as_advanced(WEFT_PROTOBUF_INCLUDE_DIR WEFT_PROTOBUF_LIBRARY WEFT_GRPCPP_REFLECTION_LIBRARY
    WEFT_ABSL_LIBRARY)
  if(WEFT_PROTOBUF_INCLUDE_DIR AND WEFT_PROTOBUF_LIBRARY AND WEFT_GRPCPP_REFLECTION_LIBRARY
     AND WEFT_ABSL_LIBRARY)
    add_library(weft::protobuf UNKNOWN IMPORTED)
    set_target_properties(weft::protobuf PROPERTIES IMPORTED_LOCATION ${WEFT_GRPCPP_REFLECTION_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${WEFT_PROTOBUF_INCLUDE_DIR}
      INTERFACE_LINK_LIBRARIES "${WEFT_PROTOBUF_LIBRARY};${WEFT_ABSL_LIBRARY};weft::grpc")
  endif()
endif()
