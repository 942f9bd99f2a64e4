#include <weft/tensor/file_io.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include <sys/stat.h>
#include <unistd.h>

#include <weft/kernels/backend.h>

namespace weft::detail {

FileReader::FileReader(const char* what, const std::string& path) : what_(what), path_(path) {
  file_ = std::fopen(path.c_str(), "rb");
  if (!file_) fail(std::strerror(errno));
  struct stat info {};
  const bool known = fstat(fileno(file_), &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    std::fclose(std::exchange(file_, nullptr));
    fail("not a regular file");
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

FileWriter::FileWriter(const char* what, const std::string& path) : what_(what), path_(path) {
  static std::atomic<uint64_t> counter{0};
  temporary_ = str(path, ".tmp-", static_cast<int64_t>(getpid()), "-", counter.fetch_add(1));
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (!file_) fail("open");
}

FileWriter::~FileWriter() {
  if (!file_) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

void FileWriter::write(const void* from, uint64_t bytes) {
  if (std::fwrite(from, 1, bytes, file_) != bytes) fail("write");
  position_ += bytes;
}

void FileWriter::commit() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) fail("write");
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (!closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int why = errno;
    std::remove(temporary_.c_str());
    errno = why;
    fail("finish");
  }
}

void FileWriter::fail(const char* doing) const {
  throw IoError(str(what_, ": ", path_, ": cannot ", doing, ": ", std::strerror(errno)));
}

Tensor host_copy(const Tensor& x) {
  Context context;
  Tensor y = x;
  if (!x.is_contiguous()) {
    y = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
    backend(x.device()).copy(context, x.view_of(), y.view_of());
  }
  if (y.device().is_cpu()) return y;
  Tensor host = empty(x.sizes(), {.dtype = x.dtype()});
  backend(x.device())
      .copy_to_host(context, y.raw(), host.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype())));
  return host;
}

}  // namespace weft::detail
