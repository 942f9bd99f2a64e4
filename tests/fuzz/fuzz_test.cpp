// Every target over its seeds, its corpus and seeded mutations of both. Then malformed frames, hellos and
// bytes at the port of a worker whose group goes on working. WEFT_FUZZ_SECONDS is the time for each target.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "fuzz/targets.h"
#include "support/cluster.h"

namespace weft::fuzz {
namespace {

using namespace std::chrono_literals;

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<uint8_t>(c) >> 4];
    out += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

std::vector<std::string> corpus(const Target& target) {
  std::vector<std::string> all = target.seeds();
  const std::filesystem::path folder =
      std::filesystem::path(WEFT_TEST_DATA_DIR).parent_path() / "fuzz" / "corpus" / target.name;
  if (std::filesystem::exists(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream in(entry.path(), std::ios::binary);
      all.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  return all;
}

/// Changes bytes, sizes and places as malformed input has them.
std::string mutate(const std::vector<std::string>& from, std::mt19937_64& random) {
  const auto upto = [&](size_t n) { return static_cast<size_t>(random() % std::max<size_t>(n, 1)); };
  std::string s = from[upto(from.size())];
  for (size_t n = 1 + upto(4); n > 0; --n) {
    const size_t at = upto(s.size());
    switch (random() % 8) {
      case 0: s.resize(at); break;
      case 1: s.insert(at, upto(9), static_cast<char>(random())); break;
      case 2:
        if (!s.empty()) s[at] = static_cast<char>(random());
        break;
      case 3:
        if (!s.empty()) s[at] = static_cast<char>(s[at] ^ (1 << random() % 8));
        break;
      case 4: s.erase(at, upto(8)); break;
      case 5: {  // a number at its limits
        constexpr uint64_t kLimits[] = {
            0, 1, 0x7f, 0xff, 0x7fff'ffff, 0xffff'ffff, ~uint64_t{0} >> 1, ~uint64_t{0}};
        const uint64_t limit = kLimits[random() % 8];
        for (size_t i = 0; i < 8 && at + i < s.size(); ++i) s[at + i] = static_cast<char>(limit >> (8 * i));
        break;
      }
      case 6: {
        const std::string& other = from[upto(from.size())];
        s.insert(at, other.substr(upto(other.size()), upto(64)));
        break;
      }
      default: s += s.substr(at, upto(32));
    }
  }
  if (s.size() > 8192) s.resize(8192);
  return s;
}

class Fuzz : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::Range<size_t>(0, targets().size()),
                         [](const auto& info) { return std::string(targets()[info.param].name); });

TEST_P(Fuzz, malformed_input_is_refused_and_harms_nothing) {
  const Target& target = targets()[GetParam()];
  const char* const wish = std::getenv("WEFT_FUZZ_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(wish ? 1000 * std::atoi(wish) : 2000);
  const char* const shift = std::getenv("WEFT_TEST_SEED");
  std::mt19937_64 random(1 + (shift ? std::strtoull(shift, nullptr, 10) : 0));
  const auto one = [&](const std::string& input) {
    try {
      target.one(reinterpret_cast<const uint8_t*>(input.data()), input.size());
      return true;
    } catch (const std::exception& e) {
      ADD_FAILURE() << target.name << ": " << e.what() << "\n" << hex(input);
      return false;
    }
  };
  std::vector<std::string> known = corpus(target);
  for (const std::string& input : known) ASSERT_TRUE(one(input));
  uint64_t count = 0;
  while (count < 2000 || std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(one(mutate(known, random)));
    ++count;
  }
  RecordProperty("inputs", std::to_string(count));
}

// ---- a live port

int64_t fuzz_twice(int64_t x) { return 2 * x; }
WEFT_RPC(fuzz_twice);

/// Sends bytes to a port and reads to the end of the connection, for a moment at most.
void speak(const std::string& to, const std::string& words) {
  const rpc::HostPort at = rpc::parse_host_port(to);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(at.port);
  inet_pton(AF_INET, at.host.c_str(), &address.sin_addr);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    static_cast<void>(send(fd, words.data(), words.size(), MSG_NOSIGNAL));
    shutdown(fd, SHUT_WR);
  }
  close(fd);
}

/// A transport that hears nothing of use.
struct Deaf final : rpc::Receiver {
  rpc::Block allocate(rpc::WorkerId, uint8_t, const std::string&, int64_t, int32_t) override {
    throw rpc::WireError("nothing is read here");
  }
  void on_message(rpc::Inbound) override {}
  void on_peer(rpc::WorkerId, rpc::Incarnation, rpc::PeerState, const std::string&) override {}
};

TEST(FuzzLive, malformed_hellos_frames_and_messages_at_a_live_port_harm_no_call_of_the_group) {
  test::Cluster c({.over = test::Over::kGrpc, .size = 3});
  std::mt19937_64 random(7);
  const Target& frames = targets().front();
  const std::vector<std::string> known = corpus(frames);
  const rpc::PeerAddress at = c.agent(1)->transport().addresses();
  rpc::PeerAddress outside = at;
  outside.incarnation = {};
  std::string tcp;
  for (const std::string& a : at.addresses)
    if (a.rfind("unix:", 0) != 0) tcp = a;
  ASSERT_NE(tcp, "");
  const std::string preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  const auto rt = rpc::make_threaded_runtime();
  for (int round = 0; round < 60; ++round) {
    c.run(0, [&] { EXPECT_EQ(rpc::rpc_sync<fuzz_twice>("worker1", round), 2 * round); });
    const std::string bytes = mutate(known, random) + "xx";
    speak(tcp, round % 2 ? bytes : preface + bytes);
    {  // a stream whose first frame is malformed
      Deaf deaf;
      const auto stranger = rpc::make_grpc_transport(
          rt, {.id = rpc::WorkerId{round % 3}, .connect_timeout = 100ms, .first_frame = bytes.substr(1)},
          deaf);
      stranger->add_peer(rpc::WorkerId{1}, outside);
      stranger->send(rpc::WorkerId{1}, 8, "x");
      for (int i = 0; i < 200 && stranger->counters(rpc::WorkerId{1}).refusals == 0; ++i) rt->sleep_for(1ms);
      stranger->close(0s);
    }
    for (int i = 0; i < 20; ++i) {  // messages of a member whose agent has gone mad
      const std::string header = mutate(envelope_seeds(), random);
      const auto kind = static_cast<uint8_t>(random());
      c.agent(2)->transport().send(rpc::WorkerId{1}, kind, header);
    }
  }
  c.run(0, [&] { EXPECT_EQ(rpc::rpc_sync<fuzz_twice>("worker1", 21), 42); });
  c.run(1, [&] { EXPECT_EQ(rpc::rpc_sync<fuzz_twice>("worker0", 21), 42); });
  EXPECT_GT(c.agent(1)->debug_info().at("agent.malformed"), 0);
  EXPECT_FALSE(c.agent(1)->is_lost(rpc::WorkerId{0}));
  EXPECT_EQ(c.agent(0)->debug_info().at("agent.lost_peers"), 0);
}

}  // namespace
}  // namespace weft::fuzz
