// A frame as gRPC's byte buffer. Inner part of the gRPC transport.
#pragma once

#include <weft/distributed/frame.h>

struct grpc_byte_buffer;

namespace weft::rpc::inner {

/// Small pieces are copied, the frame's own large ones move into it, payload memory is referred to: gRPC drops each slice when it has
/// passed to the socket, and the last drop of a message releases its payloads, on whatever thread that is.
grpc_byte_buffer* to_buffer(Frame frame);

}  // namespace weft::rpc::inner
