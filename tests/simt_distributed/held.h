// For tests between real processes: a check that ends a child's job, and emulated devices that stand still.
// A thread of the process keeps the emulation's lock, so that no copy begins and no block is made or opened
// there. A message cannot end it, since the thread that reads messages soon waits too. A signal ends it.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <weft/kernels/error.h>
#include "support/simt/memory.h"

namespace weft::test {

inline void expect(bool holds, const std::string& claim) {
  if (!holds) throw Error("not true: " + claim);
}

inline std::atomic<bool> devices_go_on{true};

/// Until go_on(), or SIGUSR1 from another process.
inline void hold_devices() {
  devices_go_on = false;
  signal(SIGUSR1, [](int) { devices_go_on = true; });
  std::atomic<bool> held{false};
  std::thread([&held] {
    const cuda::simt::DeviceAccess lock;
    held = true;
    while (!devices_go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }).detach();
  while (!held) std::this_thread::yield();
}
inline void go_on() { devices_go_on = true; }

}  // namespace weft::test
