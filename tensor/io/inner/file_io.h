// Reading and writing whole files, with errors that name the file. A FileWriter writes a temporary file
// beside the target and renames it at commit(). So a crash or a full disk never leaves half a file
// (write_file.h). host_copy() returns the data to write.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <weft/tensor/io/write_file.h>
#include <weft/tensor/tensor.h>

namespace weft::detail {

class FileReader {
 public:
  /// Does not wait for the writer of a pipe. Throws: IoError if `path` is missing or not a regular file.
  FileReader(const char* what, const std::string& path);
  FileReader(const FileReader&) = delete;
  ~FileReader();
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }
  void read(void* to, uint64_t bytes);  ///< Throws: IoError at the end of the file.
  void seek(uint64_t position);
  /// Throws: IoError with the text "what: path: problem".
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  const char* what_;
  std::string path_;
  std::FILE* file_ = nullptr;
  uint64_t size_ = 0, position_ = 0;
};

/// The bytes of the file. Throws: IoError as FileReader.
std::string read_file(const char* what, const std::string& path);

class FileWriter {
 public:
  /// `what` is the prefix of each error, "" for none. Throws: IoError as write_file does before its first
  /// byte.
  FileWriter(const char* what, const std::string& path);
  FileWriter(const FileWriter&) = delete;
  ~FileWriter();  ///< without commit() the temporary file is removed
  void write(const void* from, uint64_t bytes);
  uint64_t position() const { return position_; }
  void commit();

 private:
  [[noreturn]] void fail(const char* why) const;
  const char* what_;
  std::string path_, target_, temporary_;  // as given; with links resolved; beside the target
  std::FILE* file_ = nullptr;
  uint64_t position_ = 0;
};

/// x if it is row-major in CPU memory, else such a copy.
Tensor host_copy(const Tensor& x);

}  // namespace weft::detail
