// The contents of the messages of gathers. Lives travel as two lists, and messages of workers inside others.
// The hash of a set of lives is the same on every worker.
#include <weft/distributed/rpc/inner/gather_messages.h>

#include <bit>

#include <weft/distributed/rpc/inner/unrecorded.h>

namespace weft::rpc {

uint64_t sip_hash(std::span<const uint64_t> words, uint64_t key0, uint64_t key1) {
  uint64_t a = key0 ^ 0x736f6d6570736575U, b = key1 ^ 0x646f72616e646f6dU, c = key0 ^ 0x6c7967656e657261U,
           d = key1 ^ 0x7465646279746573U;
  const auto mix = [&](int rounds) {
    for (; rounds > 0; --rounds) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  };
  for (const uint64_t word : words) d ^= word, mix(2), a ^= word;
  c ^= 0xff, mix(4);
  return a ^ b ^ c ^ d;
}

uint64_t set_of(const std::vector<Life>& lives) {
  std::vector<uint64_t> words;
  words.reserve(2 * lives.size() + 1);
  for (const Life& life : lives) {
    words.push_back(static_cast<uint64_t>(life.id.value));
    words.push_back(life.incarnation.value);
  }
  words.push_back(uint64_t{16 * lives.size()} << 56);
  return std::max<uint64_t>(sip_hash(words, 0, 0), 1);
}

void put_lives(Encoder& out, const std::vector<Life>& lives) {
  std::vector<int32_t> ids;
  std::vector<uint64_t> incarnations;
  for (const Life& life : lives) ids.push_back(life.id.value), incarnations.push_back(life.incarnation.value);
  out.put(ids);
  out.put(incarnations);
}

std::vector<Life> get_lives(Decoder& in) {
  const auto ids = in.get<std::vector<int32_t>>();
  const auto incarnations = in.get<std::vector<uint64_t>>();
  if (ids.size() != incarnations.size()) detail::malformed("a gather with ids and incarnations that differ");
  std::vector<Life> lives;
  for (size_t i = 0; i < ids.size(); ++i) lives.emplace_back(WorkerId{ids[i]}, Incarnation{incarnations[i]});
  return lives;
}

void put_message(Encoder& out, const Message& m) {
  out.put(std::string(m.body()));
  out.place_on(kCpu);  // device maps apply to calls only
  out.put(m.tensors);
}

Message get_message(Decoder& in) {
  Message m;
  m.bytes.resize(kEnvelopeBytes);
  m.bytes += in.get<std::string>();
  m.body_end = m.bytes.size();
  m.tensors = in.get<std::vector<Tensor>>();
  detach_unrecorded(m);
  return m;
}

}  // namespace weft::rpc
