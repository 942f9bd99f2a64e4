# weft::grpc, the C++ library of gRPC with its headers: for weft's own build and, installed beside the
# package file, for static consumers. Shared libraries are found by name. The package file of gRPC would ask
# for its code generators too, packages of their own on Debian that weft never runs.
# It is read only for static archives, since these need all of gRPC's own dependencies named.
if(NOT TARGET weft::grpc AND NOT TARGET gRPC::grpc++)
  find_path(WEFT_GRPC_INCLUDE_DIR grpcpp/completion_queue.h)
  find_library(WEFT_GRPCPP_LIBRARY grpc++)
  find_library(WEFT_GRPC_LIBRARY grpc)
  find_library(WEFT_GPR_LIBRARY gpr)
  mark_as_advanced(WEFT_GRPC_INCLUDE_DIR WEFT_GRPCPP_LIBRARY WEFT_GRPC_LIBRARY WEFT_GPR_LIBRARY)
  if(WEFT_GRPCPP_LIBRARY MATCHES "\\.(a|lib)$")
    find_package(gRPC QUIET CONFIG)  # not on Debian
  elseif(WEFT_GRPC_INCLUDE_DIR AND WEFT_GRPCPP_LIBRARY AND WEFT_GRPC_LIBRARY AND WEFT_GPR_LIBRARY)
    add_library(weft::grpc UNKNOWN IMPORTED)
    set_target_properties(weft::grpc PROPERTIES IMPORTED_LOCATION ${WEFT_GRPCPP_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${WEFT_GRPC_INCLUDE_DIR}
      INTERFACE_LINK_LIBRARIES "${WEFT_GRPC_LIBRARY};${WEFT_GPR_LIBRARY}")
  endif()
endif()
if(NOT TARGET weft::grpc AND TARGET gRPC::grpc++)
  add_library(weft::grpc INTERFACE IMPORTED)
  set_target_properties(weft::grpc PROPERTIES INTERFACE_LINK_LIBRARIES gRPC::grpc++)
endif()
