// The cookie of a loopback port: its file, and that neither side speaks to a process that cannot read it.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/inner/user_folder.h>

#include "mailbox.h"

namespace weft::rpc {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using inner::CookieFile;
using inner::find_cookie;

constexpr uint16_t kPort = 65001;

/// A fresh folder with mode 0700 for one test.
struct CookiePlace {
  CookiePlace() {
    std::string pattern = fs::temp_directory_path() / "weft-test-XXXXXX";
    folder = mkdtemp(pattern.data());
    choice.temporary = folder;
  }
  ~CookiePlace() { fs::remove_all(folder); }
  std::string folder;
  inner::FolderChoice choice;
};

TEST(Cookie, a_listener_has_a_private_file_while_it_lives) {
  const CookiePlace place;
  {
    const CookieFile file(kPort, place.choice);
    EXPECT_EQ(file.cookie().size(), 32u);
    EXPECT_EQ(find_cookie(kPort, place.choice), file.cookie());
    EXPECT_EQ(find_cookie(kPort + 1, place.choice), std::nullopt);
    EXPECT_EQ(fs::status(place.folder + str("/weft-", geteuid())).permissions(), fs::perms(0700));
    for (const auto& entry : fs::recursive_directory_iterator(place.folder)) {
      if (!entry.is_regular_file()) continue;
      EXPECT_EQ(fs::status(entry).permissions(), fs::perms(0600)) << entry;
    }
  }
  EXPECT_EQ(find_cookie(kPort, place.choice), std::nullopt);
  EXPECT_TRUE(fs::is_empty(place.folder + str("/weft-", geteuid())));
}

TEST(Cookie, the_file_of_a_dead_process_counts_for_nothing_and_its_port_gets_a_new_one) {
  const CookiePlace place;
  const pid_t child = fork();
  if (child == 0) {
    new CookieFile(kPort, place.choice);  // left behind
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(fs::is_empty(place.folder + str("/weft-", geteuid())));
  EXPECT_EQ(find_cookie(kPort, place.choice), std::nullopt);
  const CookieFile other(kPort + 1, place.choice);  // sweeps
  EXPECT_EQ(std::distance(fs::directory_iterator(place.folder + str("/weft-", geteuid())), {}), 2);
  const CookieFile next(kPort, place.choice);
  EXPECT_EQ(find_cookie(kPort, place.choice), next.cookie());
}

TEST(Cookie, a_hello_over_loopback_without_the_cookie_is_refused_and_one_with_it_is_heard) {
  auto rt = make_threaded_runtime();
  Mailbox at_a(*rt), at_b(*rt), at_forger(*rt);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .unix_socket = false}, at_b);
  auto a = make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false}, at_a);
  b->add_peer(WorkerId{0}, a->addresses());
  a->add_peer(WorkerId{1}, b->addresses());
  for (const std::string& cookie : {std::string(), std::string(32, '0')}) {  // all but the cookie is right
    const inner::Hello hello{.id = WorkerId{0},
                             .incarnation = a->incarnation(),
                             .target = WorkerId{1},
                             .target_incarnation = b->incarnation(),
                             .cookie = cookie};
    Mailbox box(*rt);
    auto forger = make_grpc_transport(rt,
                                      {.id = WorkerId{0},
                                       .unix_socket = false,
                                       .connect_timeout = 300ms,
                                       .first_frame = inner::encode_hello(inner::RecordType::kHello, hello)},
                                      box);
    forger->add_peer(WorkerId{1}, b->addresses());
    forger->send(WorkerId{1}, 1, "forged");
    EXPECT_TRUE(box.wait_for_state(WorkerId{1}, "unreachable")) << box.states(WorkerId{1});
    EXPECT_NE(box.reason(WorkerId{1}).find("has not the cookie"), std::string::npos)
        << box.reason(WorkerId{1});
    EXPECT_EQ(at_b.count, 0u);
    forger->close();
  }
  a->send(WorkerId{1}, 1, "real");
  EXPECT_TRUE(at_b.wait_for(1));
  a->close();
  b->close();
}

/// A socket of this process, without a cookie, that listens on `port` of the loopback; 0: it could not.
int listen_on_loopback(uint16_t& port) {
  const int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  if (bind(own, reinterpret_cast<sockaddr*>(&at), size) == 0 && listen(own, 8) == 0 &&
      getsockname(own, reinterpret_cast<sockaddr*>(&at), &size) == 0)
    port = ntohs(at.sin_port);
  return own;
}

TEST(Cookie, nobody_connects_to_a_loopback_port_of_another_program) {
  uint16_t port = 0;
  const int stranger = listen_on_loopback(port);
  ASSERT_NE(port, 0);
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{0}, .connect_timeout = 300ms}, box);
  t->add_peer(WorkerId{1}, {.addresses = {str("127.0.0.1:", port)}});
  t->send(WorkerId{1}, 1, "secret");
  EXPECT_TRUE(box.wait_for_state(WorkerId{1}, "unreachable")) << box.states(WorkerId{1});
  EXPECT_NE(box.reason(WorkerId{1}).find("no process of this user listens there"), std::string::npos)
      << box.reason(WorkerId{1});
  pollfd waiting{.fd = stranger, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&waiting, 1, 0), 0) << "a connection was made";
  t->close();
  close(stranger);
}

/// A process of another user that listens on a loopback port, until it is destroyed.
struct ForeignListener {
  ForeignListener() {
    int ends[2];
    if (pipe(ends) != 0) return;
    child = fork();
    if (child == 0) {
      const int stranger = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in at{};
      at.sin_family = AF_INET;
      at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof at;
      if (bind(stranger, reinterpret_cast<sockaddr*>(&at), size) != 0) _exit(1);
      getsockname(stranger, reinterpret_cast<sockaddr*>(&at), &size);
      close(stranger);
      if (setgid(kUser) != 0 || setuid(kUser) != 0) _exit(1);
      const int own = socket(AF_INET, SOCK_STREAM, 0);
      const int on = 1;
      setsockopt(own, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (bind(own, reinterpret_cast<sockaddr*>(&at), size) != 0 || listen(own, 8) != 0) _exit(1);
      const uint16_t number = ntohs(at.sin_port);
      if (write(ends[1], &number, sizeof number) < 0) _exit(1);
      pause();
    }
    close(ends[1]);
    if (read(ends[0], &port, sizeof port) != sizeof port) port = 0;
    close(ends[0]);
  }
  ~ForeignListener() {
    if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }
  static constexpr uid_t kUser = 65534;
  pid_t child = -1;
  uint16_t port = 0;
};

TEST(Cookie, a_listener_whose_folder_is_not_shared_is_rejected_with_the_ways_out) {
  uint16_t port = 0;
  const int other = listen_on_loopback(port);
  ASSERT_NE(port, 0);
  auto rt = make_threaded_runtime();
  try {
    connect_store(str("127.0.0.1:", port), {rt})->get("key", rt->now() + 1h);
    ADD_FAILURE() << "the store answered";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("its folder of sockets is not this one's"), std::string::npos) << text;
    EXPECT_NE(text.find("XDG_RUNTIME_DIR"), std::string::npos) << text;
  }
  close(other);
}

TEST(Cookie, a_port_of_another_user_is_rejected_at_once) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  const ForeignListener foreign;
  if (foreign.port == 0) GTEST_SKIP() << "no process of another user can listen here";
  EXPECT_EQ(inner::listening_user(foreign.port), ForeignListener::kUser);
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{0}, .connect_timeout = 1h}, box);
  t->add_peer(WorkerId{1}, {.addresses = {str("127.0.0.1:", foreign.port)}});
  t->send(WorkerId{1}, 1, "secret");
  EXPECT_TRUE(box.wait_for_state(WorkerId{1}, "rejected")) << box.states(WorkerId{1});
  EXPECT_NE(box.reason(WorkerId{1}).find("a process of user 65534 listens there"), std::string::npos)
      << box.reason(WorkerId{1});
  t->close();
  try {
    connect_store(str("127.0.0.1:", foreign.port), {rt})->get("key", rt->now() + 1h);
    ADD_FAILURE() << "the store answered";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("a process of user 65534 listens there"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace weft::rpc
