// The speed of the CUDA backend. It measures memory-bound kernels beside the device's copy rate, launch cost
// and optimizer steps over 1 GB. It also measures the language model's step, plain and replayed from a graph.
// A time is the median of several samples between device events, after a warm-up. Inputs rotate through more
// memory than the cache holds. The flags are those of Google Benchmark: --benchmark_filter=RE,
// --benchmark_out=FILE (JSON). --peers=FILE reads another library's times by our names, in lines `name ns`.
// The flag --quick shortens the run, and --part=NAME runs one part of it (--part= lists them). The program
// does not use Google Benchmark, so it builds with a CUDA toolkit alone. Without a device it prints the
// reason and exits with 0. It exits with 1 after a failure.
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <weft/tensor/io/write_file.h>

#include "bench.h"

namespace {

using namespace weft;
using namespace weft::bench;

void write_json(const Bench& b, const std::string& path) {
  const DeviceProperties p = cuda::device_properties(gpu);
  std::ostringstream out;
  out << "{\n \"context\": {\"device\": \"" << p.name << "\", \"compute_capability\": \"" << p.major << '.'
      << p.minor << "\", \"processors\": " << p.processors << ", \"memory\": " << p.memory
      << ", \"copy_bytes_per_second\": " << b.copy_rate << "},\n \"benchmarks\": [";
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const Row& r = b.rows[i];
    out << (i > 0 ? ",\n  " : "\n  ") << "{\"name\": \"" << r.name
        << "\", \"run_type\": \"iteration\", \"real_time\": " << r.ns << ", \"time_unit\": \"ns\"";
    if (r.bytes > 0) out << ", \"bytes_per_second\": " << r.bytes / r.ns * 1e9;
    if (r.flops > 0) out << ", \"flops_per_second\": " << r.flops / r.ns * 1e9;
    if (const auto peer = b.peers.find(r.name); peer != b.peers.end())
      out << ", \"pytorch_real_time\": " << peer->second;
    out << '}';
  }
  out << "\n ]\n}\n";
  write_file(path, out.str());
}

struct Part {
  const char* name;
  void (*run)(Bench&);
};
constexpr Part kParts[] = {
    {"memory", memory_bound},
    {"rows", rows_and_columns},
    {"small", small},
    {"losses", losses_and_tables},
    {"products", products},
    {"feed_forward", feed_forward_part},
    {"attention", attention},
    {"optimizers", optimizers},
    {"transfers", transfers},
    {"ipc", sharing},
    {"recurrent", recurrent_layers},
    {"model", [](Bench& b) { language_model(b, 10000, 650, 0.5); }},
    {"large_model", [](Bench& b) { language_model(b, 33278, 1500, 0.65); }},
};

std::optional<std::string> value_of(const std::string& argument, const std::string& flag) {
  if (argument.compare(0, flag.size() + 1, flag + "=") != 0) return std::nullopt;
  return argument.substr(flag.size() + 1);
}

int run(int argc, char** argv) {
  Bench b;
  std::string out;
  std::optional<std::string> part;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (const auto filter = value_of(argument, "--benchmark_filter")) {
      b.filter = std::regex(*filter);
    } else if (const auto path = value_of(argument, "--benchmark_out")) {
      out = *path;
    } else if (const auto peers = value_of(argument, "--peers")) {
      std::ifstream in(*peers);
      std::string name;
      for (double ns; in >> name >> ns;) b.peers[name] = ns;
    } else if (const auto name = value_of(argument, "--part")) {
      if (std::none_of(std::begin(kParts), std::end(kParts),
                       [&](const Part& p) { return *name == p.name; })) {
        std::string names;
        for (const Part& p : kParts) names += str(" ", p.name);
        std::fprintf(stderr, "bench_gpu: no part '%s' (parts:%s)\n", name->c_str(), names.c_str());
        return 2;
      }
      part = name;
    } else if (argument == "--ipc-owner") {
      return own_shared_memory();
    } else if (argument == "--quick") {
      b.samples = 5, b.seconds = 0.01;
    } else if (!value_of(argument, "--benchmark_out_format")) {
      std::fprintf(stderr,
                   "bench_gpu: unknown argument %s (takes --benchmark_filter=RE --benchmark_out=FILE "
                   "--peers=FILE --quick --part=NAME)\n",
                   argument.c_str());
      return 2;
    }
  }
  try {
    const DeviceProperties p = cuda::device_properties(gpu);
    std::printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GB\n", p.name.c_str(), p.major,
                p.minor, p.processors, static_cast<double>(p.memory) / 1e9);
  } catch (const DeviceError& e) {
    std::printf("bench_gpu: nothing measured: %s\n", e.what());
    return 0;
  }
  for (const Part& p : kParts)
    if (!part || *part == p.name) p.run(b);
  if (!out.empty() && !b.rows.empty()) write_json(b, out);
  if (b.failures > 0)
    std::printf("bench_gpu: %d of %zu failed\n", b.failures, b.rows.size() + static_cast<size_t>(b.failures));
  return b.failures > 0 || (b.rows.empty() && b.left_out == 0) ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_gpu: %s\n", e.what());
    return 1;
  }
}
