// The folder of a user's unix sockets and cookies (inner/user_folder.h): its choice and checks, names, locks,
// the sweep, and the user of a port.
#include <weft/distributed/transport/inner/user_folder.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include <weft/distributed/runtime/error.h>
#include <weft/distributed/transport/address.h>

namespace weft::rpc::inner {

static_assert(kMaxSocketPath + 1 == sizeof(sockaddr_un::sun_path));

namespace {

constexpr char kLockEnd[] = ".lock";
constexpr char kCookieBegin[] = "tcp-", kCookieEnd[] = ".cookie";
constexpr char kTlsMark[] = "tls";   ///< in the place of a cookie
constexpr size_t kNameBytes = 16;    ///< hexadecimal digits
constexpr size_t kCookieBytes = 32;  ///< the same

/// The reason why `folder` is no private folder of this user; empty when it is one.
std::string why_not_private(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0) return std::strerror(errno);
  if (S_ISLNK(info.st_mode)) return "it is a symbolic link";
  if (!S_ISDIR(info.st_mode)) return "it is not a folder";
  if (info.st_uid != geteuid()) return str("it belongs to user ", info.st_uid, ", this is user ", geteuid());
  if ((info.st_mode & 0777) != 0700) {
    char mode[16] = {};
    std::snprintf(mode, sizeof mode, "%04o", info.st_mode & 07777u);
    return str("its mode is ", mode, ", it must be 0700");
  }
  return "";
}

/// Makes the folder when it is missing. The reason why it cannot be used; empty when it can.
std::string make_private(const std::string& folder) {
  if (folder.size() + 1 + kNameBytes + std::strlen(kLaneEnd) > kMaxSocketPath)
    return str("a socket's path in it would have more than ", kMaxSocketPath, " bytes");
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return std::strerror(errno);
  return why_not_private(folder);
}

/// The folder to use. Throws: RpcError.
std::string choose_folder(const FolderChoice& choice) {
  std::string before;
  if (!choice.runtime.empty() && why_not_private(choice.runtime).empty()) {
    const std::string folder = choice.runtime + "/weft";
    const std::string why = make_private(folder);
    if (why.empty()) return folder;
    before = str("the folder ", folder, " cannot hold unix sockets: ", why, "; ");
  }
  const std::string folder = str(choice.temporary, "/weft-", geteuid());
  const std::string why = make_private(folder);
  if (why.empty()) return folder;
  throw RpcError(str(before, "the folder ", folder, " cannot hold unix sockets: ", why,
                     " (XDG_RUNTIME_DIR or TMPDIR name others, and unix_socket = false needs none)"));
}

std::string random_digits(size_t count) {
  unsigned char bytes[kCookieBytes / 2];
  if (getentropy(bytes, count / 2) != 0) throw RpcError("the system has no random number");
  std::string digits;
  for (size_t i = 0; i < count / 2; ++i) {
    digits += "0123456789abcdef"[bytes[i] >> 4];
    digits += "0123456789abcdef"[bytes[i] & 15];
  }
  return digits;
}

/// The name of a port's cookie. Containers may share the folder and have ports of their own.
std::string cookie_name(uint16_t port) { return str(kCookieBegin, host_key(), "-", port); }

/// Locks a lock file. False: another process has it, or a sweep has removed it.
bool take_lock(int fd) {
  struct stat info {};
  return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0;
}

}  // namespace

FolderChoice FolderChoice::of_process() {
  FolderChoice choice;
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') choice.runtime = runtime;
  std::error_code failed;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(failed);
  choice.temporary = failed || temporary.is_relative() ? P_tmpdir : temporary.string();
  return choice;
}

SocketFile::SocketFile(const FolderChoice& choice) {
  const std::string folder = choose_folder(choice);
  sweep_sockets(folder);
  while (lock_ < 0) {
    const std::string path = folder + "/" + random_digits(kNameBytes);
    const int fd = open((path + kLockEnd).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
      if (errno == EEXIST) continue;
      throw RpcError(str("the folder ", folder, " cannot hold unix sockets: ", std::strerror(errno)));
    }
    if (take_lock(fd)) {
      lock_ = fd;
      path_ = path;
    } else {
      close(fd);
    }
  }
}

SocketFile::~SocketFile() {
  unlink(path_.c_str());
  unlink(lane_path().c_str());
  unlink((path_ + kLockEnd).c_str());
  close(lock_);
}

CookieFile::CookieFile(uint16_t port, const FolderChoice& choice, bool tls)
    : cookie_(tls ? kTlsMark : random_digits(kCookieBytes)) {
  const std::string folder = choose_folder(choice);
  if (!tls) sweep_sockets(folder);  // a mark counts for nothing once its process is dead
  const std::string path = folder + "/" + cookie_name(port);
  const auto fail = [&](const std::string& why) {
    throw RpcError(str("the folder ", folder, " cannot hold the cookie of port ", port, ": ", why,
                       " (tls or insecure = true need none)"));
  };
  for (int attempt = 0; lock_ < 0; ++attempt) {
    const int fd = open((path + kLockEnd).c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) fail(std::strerror(errno));
    if (take_lock(fd)) {
      lock_ = fd;
      break;
    }
    close(fd);
    // A process that has just ended closes its port before its files, and a reader locks for a moment.
    if (attempt == 200) fail("another process keeps it");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string link = path + kCookieEnd;
  if ((unlink(link.c_str()) != 0 && errno != ENOENT) || symlink(cookie_.c_str(), link.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    close(lock_);
    fail(why);
  }
  path_ = path;
}

CookieFile::~CookieFile() {
  unlink((path_ + kCookieEnd).c_str());
  unlink((path_ + kLockEnd).c_str());
  close(lock_);
}

/// The text that the living process of this user keeps for a port; none without one.
static std::optional<std::string> kept_text(uint16_t port, const FolderChoice& choice) {
  const std::string mine = str("/weft-", geteuid());
  std::vector<std::string> folders = {str("/run/user/", geteuid(), "/weft"), choice.temporary + mine,
                                      P_tmpdir + mine};
  if (!choice.runtime.empty()) folders.insert(folders.begin(), choice.runtime + "/weft");
  for (const std::string& folder : folders) {
    if (!why_not_private(folder).empty()) continue;
    const std::string path = folder + "/" + cookie_name(port);
    const int fd = open((path + kLockEnd).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    char text[kCookieBytes];
    const bool alive = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const ssize_t size = alive ? readlink((path + kCookieEnd).c_str(), text, sizeof text) : -1;
    close(fd);
    if (size > 0) return std::string(text, static_cast<size_t>(size));
  }
  return std::nullopt;
}

std::optional<std::string> find_cookie(uint16_t port, const FolderChoice& choice) {
  auto text = kept_text(port, choice);
  return text && text->size() == kCookieBytes ? text : std::nullopt;
}

bool speaks_tls(uint16_t port, const FolderChoice& choice) { return kept_text(port, choice) == kTlsMark; }

/// An address of the kernel's table, in hexadecimal words of this machine's order: of the loopback, or any.
static bool hears_loopback(const std::string& address) {
  const std::string four = address.size() > 8 ? address.substr(address.size() - 8) : address;
  const bool any = address.find_first_not_of('0') == std::string::npos;
  const bool mapped = address.size() == 8 || address.substr(0, 24) == "0000000000000000FFFF0000";
  return any || (mapped && four.ends_with("7F")) ||
         (address.size() == 32 && address == std::string(24, '0') + "01000000");
}

std::optional<uint32_t> listening_user(uint16_t port) {
  constexpr char kListens[] = "0A";
  std::optional<uint32_t> found;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream rows(table);
    std::string row;
    std::getline(rows, row);  // the names of the columns
    while (std::getline(rows, row)) {
      std::istringstream columns(row);
      std::string number, local, remote, state, queues, timer, sent_again;
      uint32_t user = 0;
      if (!(columns >> number >> local >> remote >> state >> queues >> timer >> sent_again >> user)) continue;
      const size_t colon = local.rfind(':');
      if (state != kListens || colon == std::string::npos) continue;
      if (!hears_loopback(local.substr(0, colon))) continue;
      if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) != port) continue;
      found = user;
      if (user == geteuid()) return found;
    }
  }
  return found;
}

void sweep_sockets(const std::string& folder) {
  // not opendir: the thread sanitizer would take its file for an older one of that number
  const int files = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = files < 0 ? nullptr : fdopendir(files);
  if (list == nullptr) {
    if (files >= 0) close(files);
    return;
  }
  const size_t end = std::strlen(kLockEnd);
  std::vector<std::string> locks;
  while (const dirent* entry = readdir(list)) {
    const std::string name = entry->d_name;
    if (name.ends_with(kLockEnd) && (name.size() == kNameBytes + end || name.starts_with(kCookieBegin)))
      locks.push_back(folder + "/" + name);
  }
  closedir(list);
  for (const std::string& lock : locks) {
    const int fd = open(lock.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    if (take_lock(fd)) {
      const std::string path = lock.substr(0, lock.size() - end);
      for (const char* const of : {"", kLaneEnd, kCookieEnd}) unlink((path + of).c_str());
      unlink(lock.c_str());
    }
    close(fd);
  }
}

std::optional<uint32_t> socket_user(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_uid;
}

bool is_own_socket(const std::string& path) { return socket_user(path) == geteuid(); }

}  // namespace weft::rpc::inner
