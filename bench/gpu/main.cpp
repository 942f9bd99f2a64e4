// The speed of the CUDA backend. It measures memory-bound kernels beside the device's copy rate, launch cost
// and optimizer steps over 1 GB. It also measures the language model's step, plain and replayed from a graph.
// A time is the median of several samples between device events, after a warm-up. Inputs rotate through more
// memory than the cache holds. The flags are those of Google Benchmark: --benchmark_filter=RE,
// --benchmark_out=FILE (JSON). --peers=FILE reads another library's times by our names, in lines `name ns`.
// The flag --quick shortens the run. --part=NAME runs one part of it, and --list-parts lists them, those that
// no device has run often at the end. The JSON is complete after each row. The program does not use Google
// Benchmark, so it builds with a CUDA toolkit alone. Without a device it prints the reason and exits with 0.
// It exits with 1 after a failure.
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
    if (r.bytes > 0) {
      out << ", \"bytes_per_second\": " << r.bytes / r.ns * 1e9;
      if (b.copy_rate > 0) out << ", \"of_copy\": " << r.bytes / r.ns * 1e9 / b.copy_rate;
    }
    if (r.flops > 0) out << ", \"flops_per_second\": " << r.flops / r.ns * 1e9;
    if (const auto peer = b.peer_of(r.name)) out << ", \"pytorch_real_time\": " << *peer;
    out << '}';
  }
  out << "\n ]\n}\n";
  write_file(path, out.str());
}

struct Part {
  const char* name;
  void (*run)(Bench&);
  bool rates = false;  // has rows with a rate, which stands beside that of a copy
};
constexpr Part kParts[] = {
    {"model", [](Bench& b) { language_model(b, 10000, 650, 0.5, Forms::kPlain); }},
    {"large_model", [](Bench& b) { language_model(b, 33278, 1500, 0.65, Forms::kPlain); }},
    {"memory", memory_bound, true},
    {"rows", rows_and_columns, true},
    {"small", small},
    {"losses", losses_and_tables, true},
    {"products", products},
    {"optimizers", optimizers, true},
    {"transfers", transfers, true},
    {"ipc", sharing},
    {"recurrent", [](Bench& b) { recurrent_layers(b, Forms::kPlain); }},
    {"model_forms", [](Bench& b) { language_model(b, 10000, 650, 0.5, Forms::kOther); }},
    {"large_model_forms", [](Bench& b) { language_model(b, 33278, 1500, 0.65, Forms::kOther); }},
    {"recurrent_forms", [](Bench& b) { recurrent_layers(b, Forms::kOther); }},
    {"feed_forward", feed_forward_part},
    {"attention", [](Bench& b) { attention(b, Forms::kPlain); }},
    {"attention_forms", [](Bench& b) { attention(b, Forms::kOther); }},
};

/// Runs a part. An error between its rows ends it, and no other part.
void run_part(Bench& b, const Part& part) {
  try {
    if (part.rates) measure_copy(b);
    part.run(b);
  } catch (const std::exception& e) {
    b.fail(str("part ", part.name), e);
  }
}

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
    } else if (argument == "--list-parts") {
      for (const Part& p : kParts) std::printf("%s\n", p.name);
      return 0;
    } else if (argument == "--ipc-owner") {
      return own_shared_memory();
    } else if (argument == "--quick") {
      b.samples = 5, b.seconds = 0.01;
    } else if (!value_of(argument, "--benchmark_out_format")) {
      std::fprintf(stderr,
                   "bench_gpu: unknown argument %s (takes --benchmark_filter=RE --benchmark_out=FILE "
                   "--peers=FILE --quick --part=NAME --list-parts)\n",
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
  if (!out.empty()) b.keep = [&] { write_json(b, out); };
  for (const Part& p : kParts)
    if (!part || *part == p.name) run_part(b, p);
  std::printf("bench_gpu: %zu rows, %d left out, %d failed\n", b.rows.size(), b.left_out, b.failures);
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
