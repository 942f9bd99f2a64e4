// The contents of the messages of gathers. Lives travel as two lists, and messages of workers inside others.
// The hash of a set of lives is the same on every worker.
#include <weft/distributed/rpc/inner/gather_messages.h>
#include <weft/distributed/rpc/inner/unrecorded.h>

namespace weft::rpc {

uint64_t set_of(const std::vector<Life>& lives) {
  uint64_t hash = 14695981039346656037U;
  for (const Life& life : lives)
    for (const uint64_t part : {static_cast<uint64_t>(life.id.value), life.incarnation.value}) {
      hash = (hash ^ part) * 1099511628211U;
      hash ^= hash >> 32;
    }
  return std::max<uint64_t>(hash, 1);
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
