// Conversion of a frame to gRPC's byte buffer. Internal to the gRPC transport.
#pragma once

#include <weft/distributed/transport/inner/frame.h>

struct grpc_byte_buffer;

namespace weft::rpc::inner {

/// Copies small pieces, moves the frame's own large ones, and refers to payload memory. gRPC drops each slice
/// once the socket has it. The last drop of a message releases its payloads, on any thread.
grpc_byte_buffer* to_buffer(Frame frame);

}  // namespace weft::rpc::inner
