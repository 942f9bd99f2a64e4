// Whole files with errors that name the file (library internal). A FileWriter writes to a sibling temporary file that takes the name at
// commit(), so a crash or a full disk never leaves half a file under it. host_copy() gives the bytes that go into one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <weft/kernels/error.h>
#include <weft/tensor/tensor.h>

namespace weft::detail {

class FileReader {
 public:
  /// Throws: IoError when `path` is missing or no regular file.
  FileReader(const char* what, const std::string& path);
  FileReader(const FileReader&) = delete;
  ~FileReader();
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }
  void read(void* to, uint64_t bytes);  ///< Throws: IoError at the end of the file.
  void seek(uint64_t position);
  /// "what: path: problem".
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  const char* what_;
  std::string path_;
  std::FILE* file_ = nullptr;
  uint64_t size_ = 0, position_ = 0;
};

class FileWriter {
 public:
  FileWriter(const char* what, const std::string& path);
  FileWriter(const FileWriter&) = delete;
  ~FileWriter();  ///< without commit() the temporary file is removed
  void write(const void* from, uint64_t bytes);
  uint64_t position() const { return position_; }
  void commit();

 private:
  [[noreturn]] void fail(const char* doing) const;
  const char* what_;
  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
  uint64_t position_ = 0;
};

/// x itself when it lies row-major on the host, else a copy that does.
Tensor host_copy(const Tensor& x);

}  // namespace weft::detail
