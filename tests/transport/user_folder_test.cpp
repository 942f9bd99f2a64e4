// The private folder of unix sockets: which one is taken, which are refused and why, and whose files are
// swept. Another user cannot open a socket in it.
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <weft/distributed/runtime/error.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/user_folder.h>

#include "mailbox.h"

namespace weft::rpc {
namespace {

namespace fs = std::filesystem;
using inner::SocketFile;

/// A fresh folder with mode 0700 for one test.
struct Place {
  Place() {
    std::string pattern = fs::temp_directory_path() / "weft-test-XXXXXX";
    folder = mkdtemp(pattern.data());
  }
  ~Place() { fs::remove_all(folder); }
  /// The folder for sockets in it, as SocketFile names it.
  std::string sockets() const { return str(folder, "/weft-", geteuid()); }
  std::string folder;
};

/// The error of a SocketFile; empty when there is none.
std::string why_refused(const inner::FolderChoice& choice) {
  try {
    const SocketFile file(choice);
  } catch (const RpcError& e) {
    return e.what();
  }
  return "";
}

int listen_at(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
  EXPECT_EQ(listen(fd, 1), 0);
  return fd;
}

TEST(UserFolder, the_runtime_folder_is_preferred_if_it_is_private) {
  const Place runtime, temporary;
  {
    const SocketFile file({runtime.folder, temporary.folder});
    EXPECT_EQ(fs::path(file.path()).parent_path(), runtime.folder + "/weft");
    EXPECT_EQ(fs::status(runtime.folder + "/weft").permissions(), fs::perms::owner_all);
  }
  chmod(runtime.folder.c_str(), 0755);
  const SocketFile other({runtime.folder, temporary.folder}), without({"", temporary.folder});
  EXPECT_EQ(fs::path(other.path()).parent_path(), temporary.sockets());
  EXPECT_EQ(fs::path(without.path()).parent_path(), temporary.sockets());
  EXPECT_NE(other.path(), without.path());
}

TEST(UserFolder, a_folder_that_others_may_enter_is_refused_with_the_reason) {
  const Place place;
  fs::create_directory(place.sockets());
  for (const int mode : {0755, 0770, 0500}) {
    chmod(place.sockets().c_str(), static_cast<mode_t>(mode));
    const std::string why = why_refused({"", place.folder});
    EXPECT_NE(why.find("it must be 0700"), std::string::npos) << why;
    EXPECT_NE(why.find(place.sockets()), std::string::npos) << why;
  }
  chmod(place.sockets().c_str(), 0700);
  EXPECT_EQ(why_refused({"", place.folder}), "");
}

TEST(UserFolder, a_link_a_file_and_a_folder_of_another_user_are_refused) {
  const Place place, elsewhere;
  fs::create_directory_symlink(elsewhere.folder, place.sockets());
  EXPECT_NE(why_refused({"", place.folder}).find("it is a symbolic link"), std::string::npos);
  fs::remove(place.sockets());
  std::ofstream(place.sockets()) << "x";
  EXPECT_NE(why_refused({"", place.folder}).find("it is not a folder"), std::string::npos);
  fs::remove(place.sockets());
  EXPECT_NE(why_refused({"", place.folder + "/missing"}).find("No such file"), std::string::npos);
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  fs::create_directory(place.sockets());
  chmod(place.sockets().c_str(), 0700);
  ASSERT_EQ(chown(place.sockets().c_str(), 65534, 65534), 0);
  EXPECT_NE(why_refused({"", place.folder}).find("it belongs to user 65534"), std::string::npos);
}

TEST(UserFolder, a_path_that_is_too_long_gives_the_other_folder_or_an_error) {
  const Place runtime, temporary;
  const std::string deep = runtime.folder + "/" + std::string(80, 'x');
  fs::create_directory(deep);
  chmod(deep.c_str(), 0700);
  const SocketFile file({deep, temporary.folder});
  EXPECT_EQ(fs::path(file.path()).parent_path(), temporary.sockets());
  const std::string why = why_refused({deep, deep});
  EXPECT_NE(why.find("more than 107 bytes"), std::string::npos) << why;
}

TEST(UserFolder, a_sweep_removes_the_files_of_the_dead_and_leaves_those_of_the_living) {
  const Place place;
  const pid_t child = fork();
  if (child == 0) {  // ends without its destructors, as after a kill
    auto* left = new SocketFile({"", place.folder});
    _exit(listen_at(left->path()) < 0 || listen_at(left->lane_path()) < 0 ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto files = [&] {
    return std::distance(fs::directory_iterator(place.sockets()), fs::directory_iterator());
  };
  EXPECT_EQ(files(), 3);
  std::ofstream(place.sockets() + "/of somebody else") << "x";
  std::optional<SocketFile> living;
  living.emplace(inner::FolderChoice{"", place.folder});
  const int fd = listen_at(living->path());
  EXPECT_EQ(files(), 3) << "the dead one's files are still there, or one of the others has gone";
  inner::sweep_sockets(place.sockets());
  EXPECT_EQ(files(), 3);
  EXPECT_TRUE(inner::is_own_socket(living->path()));
  EXPECT_FALSE(inner::is_own_socket(place.sockets() + "/of somebody else"));
  const std::string path = living->path();
  living.reset();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(files(), 1);
  close(fd);
}

TEST(UserFolder, a_transports_socket_has_a_name_that_tells_nothing_and_goes_at_the_end) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{3}}, box);
  const std::string address = t->addresses().addresses.at(0);
  ASSERT_EQ(address.rfind("unix:/", 0), 0u) << address;
  const std::string path = address.substr(5);
  EXPECT_TRUE(inner::is_own_socket(path));
  EXPECT_EQ(address.find(to_string(t->incarnation())), std::string::npos) << address;
  t->close();
  t.reset();
  EXPECT_FALSE(fs::exists(path));
}

TEST(UserFolder, another_user_cannot_open_a_workers_socket) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{3}}, box);
  const std::string path = t->addresses().addresses.at(0).substr(5);
  const auto open_as = [&](uid_t user) {
    const pid_t child = fork();
    if (child == 0) {  // system calls only: the other threads of this process are not here
      if (user != 0 && setresuid(user, user, user) != 0) _exit(250);
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      sockaddr_un to{};
      to.sun_family = AF_UNIX;
      std::memcpy(to.sun_path, path.c_str(), path.size());
      _exit(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 ? 0 : errno);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  };
  EXPECT_EQ(open_as(0), 0);
  EXPECT_EQ(open_as(65534), EACCES);
  t->close();
}

TEST(UserFolder, a_socket_that_cannot_be_seen_gives_way_to_tcp) {
  auto rt = make_threaded_runtime();
  Mailbox box_a(*rt), box_b(*rt);
  auto a = make_grpc_transport(rt, {.id = WorkerId{0}}, box_a);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .unix_socket = false}, box_b);
  PeerAddress address = b->addresses();
  address.addresses.insert(address.addresses.begin(),
                           "unix:" + fs::temp_directory_path().string() + "/weft-nowhere/0123456789abcdef");
  a->add_peer(WorkerId{1}, address);
  b->add_peer(WorkerId{0}, a->addresses());
  a->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(box_b.wait_for(1));
  a->close();
  b->close();
}

}  // namespace
}  // namespace weft::rpc
