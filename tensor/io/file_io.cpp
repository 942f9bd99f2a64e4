// Files for the readers and writers of tensors. FileReader reads a regular file with bounds checks.
// FileWriter writes a temporary file beside the target and renames it: the target is complete at every
// moment. Links are followed first, and every reason for which the rename would fail is checked before the
// first byte. write_file and write_output (tensor/io/write_file.h) are built on them.
#include <weft/tensor/io/inner/file_io.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <weft/kernels/backend.h>
#include <weft/tensor/inner/parameter_lock.h>

namespace weft::detail {

FileReader::FileReader(const char* what, const std::string& path) : what_(what), path_(path) {
  if (path.empty()) throw IoError(str(what_, ": the path is empty"));
  // without O_NONBLOCK the open of a pipe waits for its writer
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) fail(std::strerror(errno));
  struct stat info {};
  const bool regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
  file_ = regular ? fdopen(file, "rb") : nullptr;
  if (!file_) {
    const int why = errno;
    close(file);
    fail(regular ? std::strerror(why) : "not a regular file");
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

FileReader::~FileReader() {
  if (file_) std::fclose(file_);
}

void FileReader::read(void* to, uint64_t bytes) {
  if (bytes > size_ - position_)
    fail(str("the file ends at byte ", size_, ", ", bytes, " bytes are needed at ", position_));
  if (std::fread(to, 1, bytes, file_) != bytes) fail(str("cannot read ", bytes, " bytes at ", position_));
  position_ += bytes;
}

void FileReader::seek(uint64_t position) {
  if (position > size_) fail(str("the file ends at byte ", size_, ", wanted ", position));
  if (fseeko(file_, static_cast<off_t>(position), SEEK_SET) != 0) fail(std::strerror(errno));
  position_ = position;
}

void FileReader::fail(const std::string& problem) const {
  throw IoError(str(what_, ": ", path_, ": ", problem));
}

std::string read_file(const char* what, const std::string& path) {
  FileReader file(what, path);
  std::string bytes(file.size(), '\0');
  file.read(bytes.data(), bytes.size());
  return bytes;
}

namespace {

constexpr int kMostLinks = 40;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

/// Whether the link is one of procfs to an open file (/dev/stdout). Replacing its target would lose later
/// writes to the open file.
bool names_an_open_file(const std::string& link) {
  struct statfs system {};
  return statfs(folder_of(link).c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

/// Replaces `path` by the target of its links; it stops at a link to an open file. Returns 0 or an errno.
int follow_links(std::string& path, bool& open_file) {
  struct stat info {};
  for (int links = 0; lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode); ++links) {
    if (links == kMostLinks) return ELOOP;
    if (names_an_open_file(path)) {
      open_file = true;
      return 0;
    }
    std::string to(PATH_MAX, '\0');
    const ssize_t length = readlink(path.c_str(), to.data(), to.size());
    if (length < 0) return errno;
    to.resize(static_cast<size_t>(length));
    path = to.starts_with('/') ? to : folder_of(path) + to;
  }
  return 0;
}

/// The errno with which a rename onto the file would fail, else 0. A rename fails onto a mount point, and
/// onto a file of another user in a sticky folder.
int rename_refused(const std::string& path, const struct stat& old) {
  struct statx more {};
  if (statx(AT_FDCWD, path.c_str(), 0, STATX_TYPE, &more) == 0 &&
      (more.stx_attributes & STATX_ATTR_MOUNT_ROOT))
    return EBUSY;
  struct stat folder {};
  const uid_t us = geteuid();
  const bool sticky = stat(folder_of(path).c_str(), &folder) == 0 && (folder.st_mode & S_ISVTX);
  return sticky && us != 0 && us != old.st_uid && us != folder.st_uid ? EPERM : 0;
}

/// Whether `path` is a stream, which is written into instead of replaced.
bool is_stream(const std::string& path, struct stat& info) {
  std::string target = path;
  bool open_file = false;
  if (follow_links(target, open_file) != 0 || stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode) ||
      S_ISBLK(info.st_mode))
    return false;
  return open_file || S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode);
}

/// A descriptor for the stream at `path`. If that is stdout or stderr, a duplicate, which shares the position
/// in a file.
int open_stream(const std::string& path, const struct stat& info) {
  struct stat own {};
  for (const int standard : {STDOUT_FILENO, STDERR_FILENO})
    if (fstat(standard, &own) == 0 && own.st_dev == info.st_dev && own.st_ino == info.st_ino)
      return dup(standard);
  return open(path.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
}

[[noreturn]] void cannot_write(const std::string& path) {
  throw IoError(str("cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace

FileWriter::FileWriter(const char* what, const std::string& path) : what_(what), path_(path) {
  if (path.empty()) throw IoError(str(what_, *what_ ? ": " : "", "cannot write: the path is empty"));
  static std::atomic<uint64_t> counter{0};
  target_ = path_;
  bool open_file = false;
  if (const int why = follow_links(target_, open_file)) fail(std::strerror(why));
  if (open_file) fail("not a regular file");
  struct stat old {};
  const bool replaces = stat(target_.c_str(), &old) == 0;
  if (!replaces && (errno != ENOENT || target_.empty())) fail(std::strerror(errno));
  if (!replaces && target_.ends_with('/')) fail(std::strerror(EISDIR));
  if (replaces && S_ISDIR(old.st_mode)) fail(std::strerror(EISDIR));
  if (replaces && !S_ISREG(old.st_mode)) fail("not a regular file");
  if (replaces && faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) fail(std::strerror(errno));
  if (const int why = replaces ? rename_refused(target_, old) : 0) fail(std::strerror(why));
  const mode_t mode = replaces ? old.st_mode & 0777 : 0666;
  int file = -1;
  do {
    temporary_ =
        str(folder_of(target_), ".weft-", static_cast<int64_t>(getpid()), "-", counter.fetch_add(1), ".tmp");
    file = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (file < 0 && errno == EEXIST);  // left by a killed process with the same number
  if (file < 0) fail(std::strerror(errno));
  if (replaces) {
    [[maybe_unused]] const int owned =
        fchown(file, old.st_uid, old.st_gid);  // only root may change the owner
    [[maybe_unused]] const int kept = fchmod(file, mode);
  }
  file_ = fdopen(file, "wb");
  if (file_) return;
  const int why = errno;
  close(file);
  std::remove(temporary_.c_str());
  fail(std::strerror(why));
}

FileWriter::~FileWriter() {
  if (!file_) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

void FileWriter::write(const void* from, uint64_t bytes) {
  if (std::fwrite(from, 1, bytes, file_) != bytes) fail(std::strerror(errno));
  position_ += bytes;
}

void FileWriter::commit() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) fail(std::strerror(errno));
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail(std::strerror(errno));
  std::fclose(std::exchange(file_, nullptr));
  const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // the folder is writable but not readable
  fsync(folder);           // makes the rename durable; some file systems refuse it
  close(folder);
}

void FileWriter::fail(const char* why) const {
  throw IoError(str(what_, *what_ ? ": " : "", "cannot write ", path_, ": ", why));
}

Tensor host_copy(const Tensor& given) {
  Context context;
  const Tensor x = held(given);
  Tensor y = x;
  if (!x.is_contiguous()) {
    y = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
    backend(x.device()).copy(context, x.view_of(), y.view_of());
  }
  if (y.device().is_cpu()) return y;
  Tensor host = empty(x.sizes(), {.dtype = x.dtype()});
  backend(x.device())
      .copy_to_host(context, y.address(), host.address(),
                    static_cast<size_t>(x.numel() * size_of(x.dtype())));
  return host;
}

}  // namespace weft::detail

namespace weft {

void write_file(const std::string& path, std::string_view bytes) {
  detail::FileWriter file("", path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void check_writable(const std::string& path) { detail::FileWriter("", path); }

void write_output(const std::string& path, std::string_view bytes) {
  struct stat info {};
  if (!detail::is_stream(path, info)) return write_file(path, bytes);
  std::fflush(stdout);
  const int to = detail::open_stream(path, info);
  if (to < 0) detail::cannot_write(path);
  while (!bytes.empty()) {
    const ssize_t written = write(to, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      close(to);
      errno = why;
      detail::cannot_write(path);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  close(to);
}

void check_output(const std::string& path) {
  struct stat info {};
  if (!detail::is_stream(path, info)) return check_writable(path);
  if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) detail::cannot_write(path);
}

}  // namespace weft
