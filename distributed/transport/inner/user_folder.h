// The folder of a user's unix sockets and cookies. Its mode is 0700: the kernel lets no other user open a
// file there. It is XDG_RUNTIME_DIR/weft if that variable names a private folder of this user, else
// weft-<uid> in the folder for temporary files. A worker may have two sockets, one for gRPC and one for the
// same-host lane, and one lock file for both. Its process keeps that locked while it lives. A process that
// starts sweeps the folder: if it can lock a lock file, the owner is dead, and all its files go. The lock
// comes before the sockets. If a sweep wins the race for a new lock file, its owner
// takes another name. A plain TCP listener of the loopback interface has a cookie there, with a lock. It
// proves the listener to those that connect, and they show its cookie. Internal to the gRPC transport.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <weft/distributed/transport/address.h>
#include <weft/kernels/macros.h>

namespace weft::rpc::inner {

/// Folders that may hold the sockets. Tests give their own.
struct WEFT_API FolderChoice {
  std::string runtime;    ///< XDG_RUNTIME_DIR; empty: not set
  std::string temporary;  ///< the folder for temporary files
  /// From the environment.
  static FolderChoice of_process();
};

/// The longest path of a unix socket on Linux, without the final zero.
inline constexpr size_t kMaxSocketPath = 107;

/// A name for a worker's unix sockets in the user's folder, and its lock. Thread safety: as a plain value.
class WEFT_API SocketFile {
 public:
  /// Makes the folder when it is missing, sweeps it, and takes a random name. Throws: RpcError that names the
  /// folder and the reason: not a folder, a link, another owner, another mode, too long a path.
  explicit SocketFile(const FolderChoice& choice = FolderChoice::of_process());
  /// Removes the sockets and the lock.
  ~SocketFile();
  SocketFile(const SocketFile&) = delete;

  /// The path for bind. Nothing is there yet.
  const std::string& path() const { return path_; }
  /// The same for a second socket, that of the same-host lane.
  std::string lane_path() const { return path_ + kLaneEnd; }

 private:
  std::string path_;
  int lock_ = -1;
};

/// The cookie of a TCP listener: a secret in the folder, named by network namespace and port. It is the
/// target of a symbolic link, which a full disk holds too. A TLS listener has a mark in its place, which
/// informs plain clients. Thread safety: as a plain value.
class CookieFile {
 public:
  /// Writes the cookie of a port that this process listens on. Throws: RpcError as SocketFile; also when
  /// another living process keeps the file of that port.
  explicit CookieFile(uint16_t port, const FolderChoice& choice = FolderChoice::of_process(),
                      bool tls = false);
  /// Removes the file. The port must still be open then: its next owner writes the same file.
  ~CookieFile();
  CookieFile(const CookieFile&) = delete;

  const std::string& cookie() const { return cookie_; }

 private:
  std::string path_, cookie_;
  int lock_ = -1;
};

/// The cookie of the living process of this user that listens on a loopback port; none without one.
std::optional<std::string> find_cookie(uint16_t port,
                                       const FolderChoice& choice = FolderChoice::of_process());

/// True if a living process of this user listens on that port and speaks TLS there.
bool speaks_tls(uint16_t port, const FolderChoice& choice = FolderChoice::of_process());

/// The user of the processes that listen on a loopback port of this host, from the kernel's table of sockets.
/// If one of these processes is this user's, this user. None: no process listens there.
std::optional<uint32_t> listening_user(uint16_t port);

/// Removes the sockets and cookies of dead processes from a folder.
void sweep_sockets(const std::string& folder);

/// The user of the unix socket at `path`; none: there is no socket, or none that this process can see.
std::optional<uint32_t> socket_user(const std::string& path);
/// True if `path` is a unix socket of this process's user.
bool is_own_socket(const std::string& path);

}  // namespace weft::rpc::inner
