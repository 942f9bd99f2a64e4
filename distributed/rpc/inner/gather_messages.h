// The contents of the messages of gathers (inner/gathers.h).
#pragma once

#include <vector>

#include <weft/distributed/rpc/inner/core.h>

namespace weft::rpc {

/// The number of a set of lives, never 0: FNV-1a of their numbers, the same on every worker.
uint64_t set_of(const std::vector<Life>& lives);

void put_lives(Encoder& out, const std::vector<Life>& lives);
/// Throws: WireError.
std::vector<Life> get_lives(Decoder& in);

/// The message of a worker inside another one.
void put_message(Encoder& out, const Message& m);
Message get_message(Decoder& in);

}  // namespace weft::rpc
