// The target of a live port: bytes, streams and messages at a worker of a group over gRPC. Its members go on
// calling each other. The first byte of an input chooses how the others arrive. The group is made again when
// the worker has given up the member that sends them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>

#include "fuzz/targets.h"
#include "transport/raw_lane.h"

namespace weft::fuzz {

namespace {

using namespace rpc;
using namespace std::chrono_literals;

int64_t live_twice(int64_t x) { return 2 * x; }
WEFT_RPC(live_twice);

/// How the bytes of an input arrive.
enum Way : uint8_t { kBytes, kHttp2, kStream, kMessage, kWays };

const std::string kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

/// Sends bytes to a port and closes the connection.
void speak(const std::string& to, const std::string& words) {
  const HostPort at = parse_host_port(to);
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

/// The same at the socket of the same-host lane, with and without the right length before them.
void speak_on_lane(const std::string& path, const std::string& words) {
  for (const bool framed : {false, true}) RawLane(path, framed ? lane_frame(words) : words);
}

/// A transport that hears nothing of use.
struct Deaf final : Receiver {
  Block allocate(WorkerId, uint8_t, const std::string&, int64_t, int32_t) override {
    throw WireError("nothing is read here");
  }
  void on_message(Inbound) override {}
  void on_peer(WorkerId, Incarnation, PeerState, const std::string&) override {}
};

/// Worker 1 is the port, worker 0 its friend, and worker 2 a member whose agent has gone mad.
class Group {
 public:
  Group() {
    std::vector<Member> members;
    for (int rank = 0; rank < 3; ++rank) {
      AgentOptions options;
      options.id = WorkerId{rank};
      options.name = str("worker", rank);
      agents_.push_back(Agent::create(runtime_, options, [&](Receiver& receiver) {
        return make_grpc_transport(runtime_, {.id = options.id, .same_host_lane = true}, receiver);
      }));
      members.push_back(agents_.back()->as_member());
    }
    for (const auto& agent : agents_) agent->add_members(members);
    outside_ = agents_[1]->transport().addresses();
    outside_.incarnation = {};
    for (const std::string& a : outside_.addresses)
      if (a.rfind("unix:", 0) != 0) tcp_ = a;
    lane_ = lane_path_of(agents_[1]->transport());
    if (tcp_.empty() || lane_.empty() == has_same_host_lane())
      throw Defect("the worker lacks a port or a socket");
  }
  Group(const Group&) = delete;
  ~Group() {
    for (const auto& agent : agents_) agent->shutdown({.graceful = false});
    runtime_->stop();
  }

  void take(Way way, const std::string& bytes) {
    switch (way) {
      case kBytes:
        if (!lane_.empty()) speak_on_lane(lane_, bytes);
        return speak(tcp_, bytes);
      case kHttp2: return speak(tcp_, kPreface + bytes);
      case kStream: return open_stream(bytes);
      default:
        if (bytes.empty()) return;
        agents_[2]->transport().send(WorkerId{1}, static_cast<uint8_t>(bytes[0]), bytes.substr(1));
    }
  }
  /// Throws Defect, or the error of the call.
  void check() {
    for (const int from : {0, 1}) {
      const AgentScope scope(agents_[static_cast<size_t>(from)]);
      if (rpc_sync<live_twice>({str("worker", 1 - from), 60s}, int64_t{21}) != 42)
        throw Defect("a call of the group has another result");
    }
    if (agents_[0]->debug_info().at("agent.lost_peers") != 0) throw Defect("worker 0 has lost a member");
  }
  bool whole() const { return !agents_[1]->is_lost(WorkerId{2}); }
  int64_t malformed() const { return agents_[1]->debug_info().at("agent.malformed"); }

 private:
  /// A stream whose first frame is given; it ends with the refusal, or after a moment.
  void open_stream(const std::string& first_frame) {
    Deaf deaf;
    const auto stranger = make_grpc_transport(
        runtime_, {.id = WorkerId{2}, .connect_timeout = 100ms, .first_frame = first_frame + "x"}, deaf);
    stranger->add_peer(WorkerId{1}, outside_);
    stranger->send(WorkerId{1}, 8, "x");
    for (int i = 0; i < 200 && stranger->counters(WorkerId{1}).refusals == 0; ++i) runtime_->sleep_for(1ms);
    stranger->close(0s);
  }

  const std::shared_ptr<Runtime> runtime_ = make_threaded_runtime();
  std::vector<std::shared_ptr<Agent>> agents_;
  PeerAddress outside_;
  std::string tcp_, lane_;
};

struct Live {
  std::unique_ptr<Group> group = std::make_unique<Group>();
  int64_t malformed = 0;  ///< of the groups before this one
};
Live& the_live() {
  static Live live;
  return live;
}

}  // namespace

void live(const uint8_t* data, size_t size) {
  if (size == 0) return;
  Live& now = the_live();
  now.group->take(static_cast<Way>(data[0] % kWays), {reinterpret_cast<const char*>(data + 1), size - 1});
  now.group->check();
  if (now.group->whole()) return;
  now.malformed += now.group->malformed();
  now.group.reset();
  now.group = std::make_unique<Group>();
}

int64_t malformed_at_live_port() { return the_live().malformed + the_live().group->malformed(); }

std::vector<std::string> live_seeds() {
  std::vector<std::string> all;
  for (const std::string& records : frame_seeds())
    for (const Way way : {kBytes, kHttp2, kStream}) all.push_back(static_cast<char>(way) + records.substr(1));
  for (const std::string& header : envelope_seeds())
    for (const char kind : {'\x08', '\x09', '\x88'})
      all.push_back(static_cast<char>(kMessage) + (kind + header));
  return all;
}

}  // namespace weft::fuzz
