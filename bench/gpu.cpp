// The speed of the CUDA backend. It measures memory-bound kernels beside the device's copy rate, launch cost
// and optimizer steps over 1 GB. It also measures the language model's step, plain and replayed from a graph.
// A time is the median of several samples between device events, after a warm-up. Inputs rotate through more
// memory than the cache holds. The flags are those of Google Benchmark: --benchmark_filter=RE,
// --benchmark_out=FILE (JSON). --peers=FILE reads another library's times by our names, in lines `name ns`.
// The flag --quick shortens the run. The program does not use Google Benchmark, so it builds with a CUDA
// toolkit alone. Without a device it prints the reason and exits with 0. It exits with 1 after a failure.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/tensor/io/write_file.h>
#include <weft/weft.h>

namespace {

using namespace weft;
using Work = std::function<void()>;

const Device gpu{DeviceType::kCuda};

struct Row {
  std::string name;
  double ns = 0;
  double bytes = 0;  ///< least number of bytes that one call moves; 0: not counted
  double flops = 0;
};

struct Bench {
  std::regex filter{"."};
  std::map<std::string, double> peers;
  std::vector<Row> rows;
  double copy_rate = 0;  ///< measured rate of a copy on the device, in bytes per second
  int samples = 15;
  double seconds = 0.05;  ///< length of a sample
  int failures = 0;

  bool wants(const std::string& name) const { return std::regex_search(name, filter); }

  /// Times `work` on the device. One call moves at least `bytes` and computes at least `flops`.
  void run(const std::string& name, const Work& work, double bytes = 0, double flops = 0) {
    if (!wants(name)) return;
    try {
      add({name, time_of(work), bytes, flops});
    } catch (const Error& e) {
      fail(name, e);
    }
  }
  void fail(const std::string& name, const Error& e) {
    ++failures;
    std::printf("%-34s failed: %s\n", name.c_str(), e.what());
  }
  double time_of(const Work& work) {
    for (int i = 0; i < 3; ++i) work();
    cuda::synchronize(gpu);
    const double once = sample(work, 1);
    const int inner = std::clamp(static_cast<int>(seconds * 1e9 / std::max(once, 1.0)), 1, 2000);
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) times.push_back(sample(work, inner));
    std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
    return times[static_cast<size_t>(samples / 2)];
  }
  static double sample(const Work& work, int inner) {
    cuda::Event start(gpu, true), end(gpu, true);
    start.record();
    for (int i = 0; i < inner; ++i) work();
    end.record();
    end.synchronize();
    return start.elapsed_time(end) * 1e6 / inner;
  }
  void add(const Row& row) {
    rows.push_back(row);
    std::printf("%-34s %12.1f us", row.name.c_str(), row.ns / 1e3);
    if (row.bytes > 0) {
      const double rate = row.bytes / row.ns * 1e9;
      std::printf("  %8.1f GB/s", rate / 1e9);
      if (copy_rate > 0) std::printf("  %5.1f %% of copy", 100 * rate / copy_rate);
    }
    if (row.flops > 0) std::printf("  %8.1f TFLOP/s", row.flops / row.ns / 1e3);
    if (const auto peer = peers.find(row.name); peer != peers.end())
      std::printf("  PyTorch %.1f us, %.2f times weft's", peer->second / 1e3, peer->second / row.ns);
    std::printf("\n");
    std::fflush(stdout);
  }
};

/// Several equal tensors, used in turn, so that the cache has dropped a tensor before its next use.
class Rotating {
 public:
  Rotating(const Shape& sizes, DType dtype, int count) {
    for (int i = 0; i < count; ++i) tensors_.push_back(randn(sizes, {.dtype = dtype, .device = gpu}));
  }
  const Tensor& next() { return tensors_[at_++ % tensors_.size()]; }

 private:
  std::vector<Tensor> tensors_;
  size_t at_ = 0;
};

constexpr int64_t kMany = int64_t{1} << 26;  // elements of the pointwise cases
constexpr double kElements = static_cast<double>(kMany);

void memory_bound(Bench& b) {
  NoGrad quiet;
  {
    const Tensor x = empty({int64_t{1} << 28}, {.device = gpu}),
                 y = empty({int64_t{1} << 28}, {.device = gpu});
    const double bytes = 2.0 * static_cast<double>(x.numel()) * 4;
    Context context;
    Accelerator& device = accelerator(gpu);
    const double ns =
        b.time_of([&] { device.copy_async(context, y.raw(), x.raw(), static_cast<size_t>(x.numel()) * 4); });
    b.copy_rate = bytes / ns * 1e9;
    if (b.wants("Copy")) b.add({"Copy/1GiB", ns, bytes, 0});
  }
  {
    Rotating x(Shape{kMany}, kFloat32, 3);
    Tensor out = empty({kMany}, {.device = gpu});
    b.run(
        "Add/float32/64M", [&] { out = x.next() + x.next(); }, 12 * kElements);
    b.run(
        "AddInPlace/float32/64M", [&] { out += x.next(); }, 12 * kElements);
    b.run(
        "Tanh/float32/64M", [&] { out = x.next().tanh(); }, 8 * kElements);
    b.run(
        "Dropout/float32/64M", [&] { out = dropout(x.next(), 0.5); }, 8 * kElements);
    b.run(
        "Uniform/float32/64M", [&] { out.uniform_(); }, 4 * kElements);
    b.run(
        "Sum/float32/64M", [&] { x.next().sum(); }, 4 * kElements);
    b.run(
        "AddRow/float32/64Kx1K",
        [&, row = randn({1024}, {.device = gpu})] {
          out = x.next().view({kMany / 1024, 1024}) + row;
        },
        8 * kElements);
    b.run(
        "Transpose/float32/8192x8192",
        [&] {
          out = x.next().view({8192, 8192}).t().contiguous();
        },
        8 * kElements);
    b.run(
        "SumRows/float32/8192x8192",
        [&] {
          x.next().view({8192, 8192}).sum({1});
        },
        4 * kElements);
    b.run(
        "SumColumns/float32/8192x8192",
        [&] {
          x.next().view({8192, 8192}).sum({0});
        },
        4 * kElements);
    b.run(
        "Softmax/float32/65536x1024",
        [&] {
          out = x.next().view({kMany / 1024, 1024}).softmax(1);
        },
        8 * kElements);
    b.run(
        "Softmax/float32/2048x32768",
        [&] {
          out = x.next().view({kMany / 32768, 32768}).softmax(1);
        },
        8 * kElements);
    b.run(
        "Cat/float32/64x1M",
        [&] {
          const Tensor rows = x.next().view({64, kMany / 64});
          std::vector<Tensor> parts;
          for (int64_t i = 0; i < 64; ++i) parts.push_back(rows[i]);
          out = cat(parts);
        },
        8 * kElements);
  }
  Rotating x(Shape{kMany}, kBFloat16, 3);
  Tensor out;
  b.run(
      "Add/bfloat16/64M", [&] { out = x.next() + x.next(); }, 6 * kElements);
}

void small(Bench& b) {
  NoGrad quiet;
  if (!b.wants("LaunchCost")) return;
  const Tensor x = ones({1}, {.device = gpu});
  // The host's time per op while the device keeps up.
  const auto host_ns = [&](int n) {
    cuda::synchronize(gpu);
    const auto start = std::chrono::steady_clock::now();
    Tensor y = x;
    for (int i = 0; i < n; ++i) y = y + x;
    cuda::synchronize(gpu);
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / n;
  };
  host_ns(1000);
  std::vector<double> times;
  for (int i = 0; i < b.samples; ++i) times.push_back(host_ns(10000));
  std::nth_element(times.begin(), times.begin() + b.samples / 2, times.end());
  b.add({"LaunchCost/add/1", times[static_cast<size_t>(b.samples / 2)], 0, 0});
}

void losses_and_tables(Bench& b) {
  {
    Tensor x = randn({8192, 50000}, {.device = gpu}).requires_grad_();
    const Tensor target = randint(0, 50000, {8192}, {.dtype = kInt64, .device = gpu});
    const double size = static_cast<double>(x.numel()) * 4;
    {
      NoGrad quiet;
      b.run(
          "CrossEntropy/forward/8192x50000", [&] { cross_entropy(x, target); }, size);
    }
    b.run(
        "CrossEntropy/both/8192x50000",
        [&] {
          x.zero_grad();
          cross_entropy(x, target).backward();
        },
        3 * size);  // read, read again, write
  }
  nn::Embedding table(33278, 1500);
  table.to(gpu);
  const Tensor ids = randint(0, 33278, {35, 20}, {.dtype = kInt64, .device = gpu}),
               g = randn({35, 20, 1500}, {.device = gpu});
  {
    NoGrad quiet;
    b.run(
        "Embedding/forward/700x1500", [&] { table.forward(ids); }, 2.0 * 700 * 1500 * 4);
  }
  b.run("Embedding/both/700x1500of33278", [&] {
    table.zero_grad();
    table.forward(ids).backward(g);
  });
}

void products(Bench& b) {
  NoGrad quiet;
  for (const auto& [n, dtype] : {std::pair<int64_t, DType>{4096, kFloat32}, {8192, kBFloat16}}) {
    const Tensor x = randn({n, n}, {.dtype = dtype, .device = gpu}),
                 y = randn({n, n}, {.dtype = dtype, .device = gpu});
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    b.run(
        str("Matmul/", dtype, "/", n), [&] { matmul(x, y); }, 0, flops);
  }
}

/// Parameters of 1 GB in tensors of a model's sizes, and their gradients.
template <class Optimizer, class Options>
void optimizer_step(Bench& b, const std::string& name, const Options& options, double tensors_moved) {
  if (!b.wants(name)) return;
  std::vector<Tensor> parameters;
  int64_t count = 0;
  for (int64_t n = 1000; count < 250'000'000; n = n < 20'000'000 ? n * 3 : 1000) {
    parameters.push_back(randn({n}, {.device = gpu}).requires_grad_());
    parameters.back().set_grad(randn({n}, {.device = gpu}));
    count += n;
  }
  Optimizer optimizer(parameters, options);
  b.run(
      name, [&] { optimizer.step(); }, tensors_moved * 4 * static_cast<double>(count));
}

void optimizers(Bench& b) {
  optimizer_step<optim::SGD>(b, "Step/SGD/1GB", optim::SGDOptions{.lr = 1e-6}, 3);
  optimizer_step<optim::SGD>(b, "Step/Momentum/1GB", optim::SGDOptions{.lr = 1e-6, .momentum = 0.9}, 5);
  optimizer_step<optim::QHM>(b, "Step/QHM/1GB", optim::QHMOptions{.lr = 1e-6}, 5);
  optimizer_step<optim::Adam>(b, "Step/Adam/1GB", optim::AdamOptions{.lr = 1e-6}, 7);
}

/// The training step of the word language model: batch 20, 35 steps, 2 layers, clipping, SGD. Dropout is 0.65
/// or 0.2, by the model's size.
struct LanguageModel : nn::Module {
  nn::Embedding encoder;
  nn::LSTM rnn;
  nn::Linear decoder;
  nn::Dropout drop;
  LanguageModel(int64_t vocabulary, int64_t size, double dropout)
      : encoder(vocabulary, size),
        rnn(size, size, {.num_layers = 2, .dropout = dropout}),
        decoder(size, vocabulary),
        drop(dropout) {
    add("encoder", encoder), add("rnn", rnn), add("decoder", decoder), add("drop", drop);
  }
  Tensor loss(const Tensor& ids, const Tensor& target) {
    const Tensor y = drop.forward(rnn.forward(drop.forward(encoder.forward(ids))).y);
    return cross_entropy(decoder.forward(y.reshape({-1, y.size(2)})), target);
  }
};

void language_model(Bench& b, int64_t vocabulary, int64_t size, double dropout) {
  const std::string sizes = str(vocabulary, "/", size);
  const std::string plain = "LmStep/" + sizes, replayed = "LmStepGraph/" + sizes,
                    half = "LmStepBFloat16/" + sizes, fused = "LmStepCudnnDropout/" + sizes;
  if (!b.wants(plain) && !b.wants(replayed) && !b.wants(half) && !b.wants(fused)) return;
  manual_seed(1);
  LanguageModel model(vocabulary, size, dropout);
  model.to(gpu);
  const std::vector<Tensor> parameters = model.parameters();
  optim::SGD sgd(parameters, {.lr = 1e-3});
  const Tensor ids = randint(0, vocabulary, {35, 20}, {.dtype = kInt64, .device = gpu}),
               target = randint(0, vocabulary, {700}, {.dtype = kInt64, .device = gpu});
  const auto backward = [&] {
    sgd.zero_grad();
    model.loss(ids, target).backward();
  };
  const auto step = [&] {
    backward();
    optim::clip_grad_norm_async(parameters, 0.25);
    sgd.step();
  };
  b.run(plain, step);
  b.run(half, [&] {
    sgd.zero_grad();
    Tensor loss;
    {
      const Autocast cast(kBFloat16);
      loss = model.loss(ids, target);
    }
    loss.backward();
    optim::clip_grad_norm_async(parameters, 0.25);
    sgd.step();
  });
  cuda::set_cudnn_dropout(true);  // like PyTorch: the whole stack in one call, with cuDNN's own masks
  b.run(fused, step);
  cuda::set_cudnn_dropout(false);
  if (!b.wants(replayed)) return;
  try {
    for (int i = 0; i < 2; ++i) step();  // libraries and the optimizer allocate their state
    cuda::Graph graph(gpu);
    graph.capture(step);
    b.run(replayed, [&] { graph.replay(); });
  } catch (const Error& e) {
    b.fail(replayed, e);
  }
}

void transfers(Bench& b) {
  const Tensor pinned = zeros({int64_t{1} << 26}, {.pinned = true}), plain = zeros({int64_t{1} << 26});
  Tensor there = pinned.to(gpu);
  const double bytes = static_cast<double>(pinned.numel()) * 4;
  b.run(
      "ToDevice/pinned/256MiB", [&] { there = pinned.to(gpu, true); }, bytes);
  b.run(
      "ToDevice/pageable/256MiB", [&] { there = plain.to(gpu); }, bytes);
  b.run(
      "ToHost/pinned/256MiB", [&] { there.to(kCpu, true); }, bytes);
}

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

std::optional<std::string> value_of(const std::string& argument, const std::string& flag) {
  if (argument.compare(0, flag.size() + 1, flag + "=") != 0) return std::nullopt;
  return argument.substr(flag.size() + 1);
}

int run(int argc, char** argv) {
  Bench b;
  std::string out;
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
    } else if (argument == "--quick") {
      b.samples = 5, b.seconds = 0.01;
    } else if (!value_of(argument, "--benchmark_out_format")) {
      std::fprintf(stderr,
                   "bench_gpu: unknown argument %s (takes --benchmark_filter=RE --benchmark_out=FILE "
                   "--peers=FILE --quick)\n",
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
  memory_bound(b);
  small(b);
  losses_and_tables(b);
  products(b);
  optimizers(b);
  transfers(b);
  language_model(b, 10000, 650, 0.5);
  language_model(b, 33278, 1500, 0.65);
  if (!out.empty() && !b.rows.empty()) write_json(b, out);
  if (b.failures > 0)
    std::printf("bench_gpu: %d of %zu failed\n", b.failures, b.rows.size() + static_cast<size_t>(b.failures));
  return b.failures > 0 || b.rows.empty() ? 1 : 0;
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
