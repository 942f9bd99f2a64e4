// The log of a serving store: a file of records, each the journal's entries of one commit, with checksums.
//   file    "weftlog1" | identity of the store u64 | checksum u32 | records
//   record  length u32 | checksum of the length u32 | checksum of the entries u32 | entries
// A record is on the disk when append() returns. A crash can tear the last record only. Such a record is cut
// off: no client had an answer that depends on it. Damage before the last record is refused. A log that has
// grown is replaced by a shorter one, by rename. The file `<log>.lock` keeps a second process out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <weft/kernels/error.h>

namespace weft::rpc::inner {

/// Thread safety: one call at a time.
class StoreLog {
 public:
  /// Opens the log, or creates a log with `identity`. Throws: IoError that names the file, for a file that is
  /// in use, damaged or no log, and for errors of the system.
  StoreLog(std::string path, uint64_t identity);
  ~StoreLog() { close(); }
  StoreLog(const StoreLog&) = delete;
  uint64_t identity() const { return identity_; }
  /// The entries of each record that the log had when it was opened. To be called once.
  std::vector<std::string> take_records() { return std::move(records_); }

  /// Adds a record. Throws: IoError; the log then takes no further record.
  void append(std::string_view entries);
  /// Makes `entries` the only record. Throws: as append.
  void replace(std::string_view entries);
  /// Lets another store open the log.
  void close();
  /// Bytes of the file now, and after it was last made or replaced.
  uint64_t bytes() const { return bytes_; }
  uint64_t first_bytes() const { return first_bytes_; }

 private:
  void lock();
  void open_file();
  void read();
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_system(const char* what) const;
  const std::string path_;
  uint64_t identity_;
  int lock_ = -1;
  int file_ = -1;
  uint64_t bytes_ = 0, first_bytes_ = 0;
  std::vector<std::string> records_;
};

}  // namespace weft::rpc::inner
