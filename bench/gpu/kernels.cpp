// Memory-bound kernels, losses, tables and copies between host and device.
#include "bench.h"

namespace weft::bench {

constexpr double kCopied = 2.0 * (int64_t{1} << 30);  // bytes that a copy of 1 GiB reads and writes

void measure_copy(Bench& b) {
  if (b.copy_ns > 0) return;
  const Tensor x = empty({int64_t{1} << 28}, {.device = gpu}), y = empty(x.sizes(), {.device = gpu});
  const auto bytes = static_cast<size_t>(x.numel()) * 4;
  Context context;
  Accelerator& device = accelerator(gpu);
  b.copy_ns = b.time_of([&] { device.copy_async(context, y.raw(), x.raw(), bytes); });
  b.copy_rate = kCopied / b.copy_ns * 1e9;
}

void memory_bound(Bench& b) {
  NoGrad quiet;
  if (b.wants("Copy/1GiB")) b.add({"Copy/1GiB", b.copy_ns, kCopied, 0});
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
  b.run(
      "Gelu/bfloat16/64M", [&] { out = gelu(x.next()); }, 4 * kElements);
}

void rows_and_columns(Bench& b) {
  {
    NoGrad quiet;
    Rotating x(Shape{8192, 8192}, kFloat32, 3);
    Tensor out;
    const Tensor mask = x.next() > 0,
                 index = randint(0, 8192, {8192, 8192}, {.dtype = kInt64, .device = gpu}),
                 weight = ones({1024}, {.device = gpu});
    b.run(
        "Gelu/float32/64M", [&] { out = gelu(x.next()); }, 8 * kElements);
    b.run(
        "Sigmoid/float32/64M", [&] { out = x.next().sigmoid(); }, 8 * kElements);
    b.run(
        "Where/float32/64M", [&] { out = where(mask, x.next(), x.next()); }, 13 * kElements);
    b.run(
        "LayerNorm/forward/65536x1024",
        [&] {
          out = layer_norm(x.next().view({kMany / 1024, 1024}), {1024}, weight, weight);
        },
        8 * kElements);
    b.run(
        "Cumsum/float32/8192x8192", [&] { out = x.next().cumsum(1); }, 8 * kElements);
    b.run(
        "Gather/float32/8192x8192", [&] { out = x.next().gather(1, index); }, 16 * kElements);
    b.run("Sort/float32/8192x8192", [&] { x.next().sort(1); });
    b.run("TopK/float32/8192x8192of50", [&] { x.next().topk(50, 1); });
    b.run(
        "ArgMax/float32/8192x8192", [&] { out = x.next().argmax(1); }, 4 * kElements);
  }
  Tensor x = randn({kMany / 1024, 1024}, {.device = gpu}).requires_grad_(),
         weight = ones({1024}, {.device = gpu}).requires_grad_(), g = randn(x.sizes(), {.device = gpu});
  b.run(
      "LayerNorm/both/65536x1024",
      [&] {
        x.zero_grad(), weight.zero_grad();
        layer_norm(x, {1024}, weight, weight).backward(g);
      },
      (2 + 3) * 4 * kElements);
  b.run(
      "Gelu/both/float32/64M",
      [&] {
        x.zero_grad();
        gelu(x).backward(g);
      },
      (2 + 3) * 4 * kElements);
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
  {
    NoGrad quiet;
    const Tensor many = randint(0, 33278, {65536}, {.dtype = kInt64, .device = gpu});
    b.run(
        "Embedding/forward/65536x1500", [&] { table.forward(many); }, 2.0 * 65536 * 1500 * 4);
  }
  b.run("Embedding/both/700x1500of33278", [&] {
    table.zero_grad();
    table.forward(ids).backward(g);
  });
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

}  // namespace weft::bench
