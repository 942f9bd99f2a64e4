// The log of a serving store on disk: read at the start, then written record by record. The only caller is
// store.cpp, and a file lock keeps a second process out.
#include <weft/distributed/launch/inner/store_log.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <weft/tensor/io/inner/crc32.h>
#include <weft/tensor/io/write_file.h>

namespace weft::rpc::inner {
namespace {

constexpr std::string_view kLogMagic = "weftlog1";
constexpr size_t kLogHead = 8 + 8 + 4, kRecordHead = 4 + 4 + 4;

uint32_t checksum(std::string_view bytes) {
  weft::detail::Crc32 crc;
  crc.add(bytes.data(), bytes.size());
  return crc.value();
}
template <class T> void add_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T> T number_at(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string log_head(uint64_t identity) {
  std::string head(kLogMagic);
  add_number(head, identity);
  add_number(head, checksum(head));
  return head;
}
std::string log_record(std::string_view entries) {
  std::string record;
  add_number(record, static_cast<uint32_t>(entries.size()));
  add_number(record, checksum(record));
  add_number(record, checksum(entries));
  return record.append(entries);
}

/// The length of the record at `at`; none when its head is cut or damaged.
bool read_record_head(std::string_view file, size_t at, size_t& length) {
  if (file.size() - at < kRecordHead) return false;
  length = number_at<uint32_t>(file, at);
  return checksum(file.substr(at, 4)) == number_at<uint32_t>(file, at + 4);
}
bool is_record(std::string_view file, size_t at) {
  size_t length = 0;
  return read_record_head(file, at, length) && file.size() - at - kRecordHead >= length &&
         checksum(file.substr(at + kRecordHead, length)) == number_at<uint32_t>(file, at + 8);
}

}  // namespace

StoreLog::StoreLog(std::string path, uint64_t identity) : path_(std::move(path)), identity_(identity) {
  try {
    lock();
    open_file();
    struct stat info;
    if (fstat(file_, &info) != 0) fail_system("its size is unknown");
    if (info.st_size == 0) {
      write_file(path_, log_head(identity_));
      open_file();
    }
    read();
  } catch (...) {
    close();
    throw;
  }
}

void StoreLog::close() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

void StoreLog::fail(const std::string& what) const { throw IoError(str("store log ", path_, ": ", what)); }
void StoreLog::fail_system(const char* what) const { fail(str(what, ": ", std::strerror(errno))); }

void StoreLog::lock() {
  lock_ = open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) fail_system("its lock cannot be opened");
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) fail("another store uses it");
    fail_system("it cannot be locked");
  }
}

void StoreLog::open_file() {
  if (file_ >= 0) ::close(file_);
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file_ < 0) fail_system("it cannot be opened");
}

void StoreLog::read() {
  std::string file;
  char block[1 << 16];
  while (true) {
    const ssize_t n = pread(file_, block, sizeof block, static_cast<off_t>(file.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_system("it cannot be read");
    if (n == 0) break;
    file.append(block, static_cast<size_t>(n));
  }
  if (file.size() < kLogHead || file.compare(0, kLogMagic.size(), kLogMagic) != 0) fail("no log of a store");
  identity_ = number_at<uint64_t>(file, 8);
  if (file.compare(0, kLogHead, log_head(identity_)) != 0) fail("its head is damaged");
  size_t at = kLogHead;
  while (at < file.size() && is_record(file, at)) {
    const auto length = number_at<uint32_t>(file, at);
    records_.push_back(file.substr(at + kRecordHead, length));
    at += kRecordHead + length;
  }
  if (at < file.size()) {  // a torn record, unless something follows it
    size_t length = 0;
    const bool known = read_record_head(file, at, length);
    bool followed = known && at + kRecordHead + length < file.size();
    for (size_t i = at + 1; !known && !followed && i < file.size(); ++i) followed = is_record(file, i);
    if (followed) fail(str("the record at byte ", at, " is damaged"));
    if (ftruncate(file_, static_cast<off_t>(at)) != 0 || fsync(file_) != 0)
      fail_system("its torn last record cannot be cut off");
  }
  bytes_ = first_bytes_ = at;
}

void StoreLog::append(std::string_view entries) {
  if (file_ < 0) fail("a write has failed before");
  if (entries.size() > UINT32_MAX) fail("a record is too long");
  const std::string record = log_record(entries);
  size_t written = 0;
  while (written < record.size()) {
    const ssize_t n = write(file_, record.data() + written, record.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    written += static_cast<size_t>(n);
  }
  if (written < record.size() || fdatasync(file_) != 0) {
    const int error = errno;
    ::close(std::exchange(file_, -1));
    errno = error;
    fail_system("it cannot be written");
  }
  bytes_ += record.size();
}

void StoreLog::replace(std::string_view entries) {
  if (file_ < 0) fail("a write has failed before");
  if (entries.size() > UINT32_MAX) fail("a record is too long");
  try {
    const std::string file = log_head(identity_) + log_record(entries);
    write_file(path_, file);
    open_file();
    bytes_ = first_bytes_ = file.size();
  } catch (...) {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
    throw;
  }
}

}  // namespace weft::rpc::inner
