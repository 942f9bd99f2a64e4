# weft::protobuf and weft::grpc_reflection, which the inspection service has besides: for weft's own build
# and, installed beside the package file, for static consumers. They need weft::grpc. Libraries are found by
# name, for the reason that weft-grpc.cmake tells. gRPC's headers for servers lock a mutex of Abseil.
if(TARGET weft::grpc AND NOT TARGET weft::protobuf)
  find_path(WEFT_PROTOBUF_INCLUDE_DIR google/protobuf/message.h)
  find_library(WEFT_PROTOBUF_LIBRARY protobuf)
  find_library(WEFT_GRPCPP_REFLECTION_LIBRARY grpc++_reflection)
  find_library(WEFT_ABSL_LIBRARY absl_synchronization)
  mark_as_advanced(WEFT_PROTOBUF_INCLUDE_DIR WEFT_PROTOBUF_LIBRARY WEFT_GRPCPP_REFLECTION_LIBRARY
    WEFT_ABSL_LIBRARY)
  if(WEFT_PROTOBUF_INCLUDE_DIR AND WEFT_PROTOBUF_LIBRARY)
    add_library(weft::protobuf UNKNOWN IMPORTED)
    set_target_properties(weft::protobuf PROPERTIES IMPORTED_LOCATION ${WEFT_PROTOBUF_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${WEFT_PROTOBUF_INCLUDE_DIR})
    if(WEFT_GRPCPP_REFLECTION_LIBRARY AND WEFT_ABSL_LIBRARY)
      add_library(weft::grpc_reflection UNKNOWN IMPORTED)
      set_target_properties(weft::grpc_reflection PROPERTIES
        IMPORTED_LOCATION ${WEFT_GRPCPP_REFLECTION_LIBRARY}
        INTERFACE_LINK_LIBRARIES "weft::protobuf;${WEFT_ABSL_LIBRARY};weft::grpc")
    endif()
  endif()
endif()
