// Memory whose first read waits for the test: for a copy that lasts as long as the test needs.
//
//   HeldMemory held(1 << 20);
//   std::jthread reader([&] { std::memcpy(to, held.data(), held.size()); });
//   held.wait_until_read();   // the reader is inside memcpy
//   held.let_go();
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <new>
#include <thread>

namespace weft::test {

/// Bytes of the value 1. One object at a time. A reader waits in a handler of SIGSEGV.
class HeldMemory {
 public:
  explicit HeldMemory(size_t bytes) : bytes_(bytes) {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    at_ = static_cast<uint8_t*>(at);
    for (size_t i = 0; i < bytes; ++i) at_[i] = 1;
    current_ = this;
    struct sigaction waits {};
    waits.sa_sigaction = on_fault;
    waits.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &waits, &before_);
    mprotect(at_, bytes_, PROT_NONE);
  }
  /// No reader may be left.
  ~HeldMemory() {
    sigaction(SIGSEGV, &before_, nullptr);
    current_ = nullptr;
    munmap(at_, bytes_);
  }
  HeldMemory(const HeldMemory&) = delete;

  uint8_t* data() const { return at_; }
  size_t size() const { return bytes_; }
  /// Waits until a thread reads it. False: none did within a minute.
  bool wait_until_read() const {
    for (int i = 0; i < 60'000 && !read_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return read_;
  }
  /// Its readers go on.
  void let_go() { open_ = true; }

 private:
  static void on_fault(int, siginfo_t* fault, void*) {
    HeldMemory* const held = current_;
    const auto* const at = static_cast<const uint8_t*>(fault->si_addr);
    if (held == nullptr || at < held->at_ || at >= held->at_ + held->bytes_) {
      signal(SIGSEGV, SIG_DFL);  // a defect: the same access ends the process
      return;
    }
    held->read_ = true;
    while (!held->open_) {
      const timespec pause{0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
    mprotect(held->at_, held->bytes_, PROT_READ | PROT_WRITE);
  }

  inline static std::atomic<HeldMemory*> current_{nullptr};
  const size_t bytes_;
  uint8_t* at_ = nullptr;
  std::atomic<bool> read_{false}, open_{false};
  struct sigaction before_ {};
};

}  // namespace weft::test
