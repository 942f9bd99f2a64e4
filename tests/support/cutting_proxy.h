// A TCP proxy of the loopback interface for one port, with faults. It can cut its connections and refuse new
// ones, hold back the bytes it has read, or pass them on late. One thread serves it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::test {

class CuttingProxy {
 public:
  /// Listens on a port of its own and connects to `target` for each connection. Throws: std::system_error.
  explicit CuttingProxy(uint16_t target);
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;

  uint16_t port() const { return port_; }
  /// True: open connections end, and new ones end at once.
  void cut(bool on) { cut_ = on; }
  /// True: bytes wait here; connections stay open.
  void hold(bool on) { held_ = on; }
  /// Bytes wait here from the time when so many have passed.
  void hold_at(int64_t bytes) { hold_at_ = bytes; }
  /// Each piece passes at least this much later.
  void delay_ms(int ms) { delay_ms_ = ms; }
  int64_t bytes() const { return bytes_; }
  int64_t connections() const { return connections_; }

 private:
  struct Pipe;
  void serve();
  uint16_t target_, port_ = 0;
  int listener_ = -1;
  std::atomic<bool> cut_{false}, held_{false}, end_{false};
  std::atomic<int> delay_ms_{0};
  std::atomic<int64_t> bytes_{0}, connections_{0}, hold_at_{INT64_MAX};
  std::vector<std::unique_ptr<Pipe>> pipes_;  // two for a connection, one after the other
  std::thread thread_;
};

}  // namespace weft::test
