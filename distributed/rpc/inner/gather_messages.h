// The contents of the messages of gathers (inner/gathers.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <weft/distributed/rpc/inner/core.h>

namespace weft::rpc {

/// SipHash-2-4 of 64-bit words; the last word is to have the length in its highest byte.
uint64_t sip_hash(std::span<const uint64_t> words, uint64_t key0, uint64_t key1);

/// The number of a set of lives, never 0, the same on every worker. Members choose the numbers of their
/// lives, but find none that give a set of theirs the number of a given one.
uint64_t set_of(const std::vector<Life>& lives);

void put_lives(Encoder& out, const std::vector<Life>& lives);
/// Throws: WireError.
std::vector<Life> get_lives(Decoder& in);

/// The message of a worker inside another one.
void put_message(Encoder& out, const Message& m);
Message get_message(Decoder& in);

}  // namespace weft::rpc
