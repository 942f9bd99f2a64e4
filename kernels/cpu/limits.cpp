// The limits of control groups. They apply to all groups below, so each path is walked up to the root of its
// mount. In a container with a namespace for control groups, the path in /proc may not exist. The walk then
// ends at the group of the container, which is mounted as the root.
#include <weft/kernels/cpu/limits.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace weft::kernels {
namespace {

/// The numbers in the first line of a file, up to "max" or anything else that is not a number.
std::vector<double> numbers_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<double> out;
  for (double n; file >> n;) out.push_back(n);
  return out;
}

/// Calls f with the folder of this process's group and of each group above it. These are the groups in the
/// version 2 hierarchy, and in that of a version 1 controller.
template <class F> void each_group(const std::string& root, const std::string& controller, F&& f) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    std::istringstream names(controllers);
    bool mine = false;
    for (std::string name; std::getline(names, name, ',');) mine = mine || name == controller;
    if (!mine && !controllers.empty()) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (mine ? "/" + controller : "");
    while (true) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      f(mount + path);
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
}

int affinity() {
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(size));
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int usable_cpus(const std::string& root) {
  double cpus = affinity();
  each_group(root, "cpu", [&](const std::string& group) {
    std::vector<double> limit = numbers_in(group + "/cpu.max");  // quota and period, or "max" and a period
    if (limit.empty()) {
      limit = numbers_in(group + "/cpu.cfs_quota_us");  // -1: none
      const std::vector<double> period = numbers_in(group + "/cpu.cfs_period_us");
      limit.insert(limit.end(), period.begin(), period.end());
    }
    if (limit.size() >= 2 && limit[0] > 0 && limit[1] > 0)
      cpus = std::min(cpus, std::ceil(limit[0] / limit[1]));
  });
  return std::max(1, static_cast<int>(cpus));
}

int64_t usable_memory(const std::string& root) {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  each_group(root, "memory", [&](const std::string& group) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"})
      if (const std::vector<double> limit = numbers_in(group + name); !limit.empty() && limit[0] > 0)
        bytes = std::min(bytes, limit[0]);
  });
  return static_cast<int64_t>(bytes);
}

int64_t cache_bytes(const std::string& root) {
  int64_t largest = 0;
  for (int i = 0; i < 8; ++i) {  // the caches of one processor
    std::ifstream in(root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (in >> size >> unit) largest = std::max(largest, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
  }
  return largest > 0 ? std::clamp<int64_t>(largest, 8 << 20, 64 << 20) : int64_t{32} << 20;
}

int64_t bytes_of_environment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  if (!text || !*text) return otherwise;
  int64_t bytes = -1;
  const char* const end = text + std::strlen(text);
  if (const auto [stop, error] = std::from_chars(text, end, bytes);
      error != std::errc() || stop != end || bytes < 0)
    throw ValueError(str(name, ": takes a number of bytes, got \"", text, "\""));
  return bytes;
}

}  // namespace weft::kernels
