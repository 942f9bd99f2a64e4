"""PyTorch's times for the work of bench_gpu, as lines `name ns` with our names. A time is the median between
device events, as in bench_gpu.

    python3 bench/peers/torch_gpu.py [FILTER] [--quick]

Needs a python with torch and a CUDA device; scripts/gpu_check.sh calls it if both exist. PyTorch runs with
its default settings, but with TF32 off for matrix products, like ours, and with the fused forms of its
optimizers. The order is that of bench_gpu, training steps first. FILTER is that of bench_gpu too: a row that
stands there in several forms is one row here.
"""
import re
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

QUICK = "--quick" in sys.argv
PATTERN = re.compile(next((a for a in sys.argv[1:] if not a.startswith("-")), "."))
SAMPLES, SECONDS = (5, 0.01) if QUICK else (15, 0.05)
MANY = 1 << 26
DEVICE = torch.device("cuda")
FORMS = ("", "Persistent", "Wavefront", "Cudnn", "CudnnFlat", "CudnnDropout", "CudnnDropoutFlat",
         "CudnnUnordered")  # of one row, before the first slash


def wanted(name):
    return any(PATTERN.search(name.replace("/", form + "/", 1)) for form in FORMS)


def sample(work, inner):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(inner):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6 / inner


def report(name, work):
    if not wanted(name):
        return
    try:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        inner = min(max(int(SECONDS * 1e9 / max(sample(work, 1), 1.0)), 1), 2000)
        print(name, statistics.median(sample(work, inner) for _ in range(SAMPLES)), flush=True)
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)


class Rotating:
    def __init__(self, sizes, dtype, count=3):
        self.tensors = [torch.randn(sizes, dtype=dtype, device=DEVICE) for _ in range(count)]
        self.at = 0

    def next(self):
        self.at += 1
        return self.tensors[self.at % len(self.tensors)]


@torch.no_grad()
def memory_bound():
    x, y = torch.empty(1 << 28, device=DEVICE), torch.empty(1 << 28, device=DEVICE)
    report("Copy/1GiB", lambda: y.copy_(x))
    del x, y
    r, out = Rotating(MANY, torch.float32), torch.empty(MANY, device=DEVICE)
    row = torch.randn(1024, device=DEVICE)
    report("Add/float32/64M", lambda: r.next() + r.next())
    report("AddInPlace/float32/64M", lambda: out.add_(r.next()))
    report("Tanh/float32/64M", lambda: r.next().tanh())
    report("Dropout/float32/64M", lambda: F.dropout(r.next(), 0.5))
    report("Uniform/float32/64M", lambda: out.uniform_())
    report("Sum/float32/64M", lambda: r.next().sum())
    report("AddRow/float32/64Kx1K", lambda: r.next().view(-1, 1024) + row)
    report("Transpose/float32/8192x8192", lambda: r.next().view(8192, 8192).t().contiguous())
    report("SumRows/float32/8192x8192", lambda: r.next().view(8192, 8192).sum(1))
    report("SumColumns/float32/8192x8192", lambda: r.next().view(8192, 8192).sum(0))
    report("Softmax/float32/65536x1024", lambda: r.next().view(-1, 1024).softmax(1))
    report("Softmax/float32/2048x32768", lambda: r.next().view(-1, 32768).softmax(1))
    report("Cat/float32/64x1M", lambda: torch.cat(r.next().view(64, -1).unbind()))
    r = Rotating(MANY, torch.bfloat16)
    report("Add/bfloat16/64M", lambda: r.next() + r.next())
    report("Gelu/bfloat16/64M", lambda: F.gelu(r.next()))


def rows_and_columns():
    with torch.no_grad():
        r = Rotating((8192, 8192), torch.float32)
        mask, index = r.next() > 0, torch.randint(0, 8192, (8192, 8192), device=DEVICE)
        ones = torch.ones(1024, device=DEVICE)
        report("Gelu/float32/64M", lambda: F.gelu(r.next()))
        report("Sigmoid/float32/64M", lambda: r.next().sigmoid())
        report("Where/float32/64M", lambda: torch.where(mask, r.next(), r.next()))
        report("LayerNorm/forward/65536x1024",
               lambda: F.layer_norm(r.next().view(-1, 1024), (1024,), ones, ones))
        report("Cumsum/float32/8192x8192", lambda: r.next().cumsum(1))
        report("Gather/float32/8192x8192", lambda: r.next().gather(1, index))
        report("Sort/float32/8192x8192", lambda: r.next().sort(1))
        report("TopK/float32/8192x8192of50", lambda: r.next().topk(50, 1))
        report("ArgMax/float32/8192x8192", lambda: r.next().argmax(1))
    x = torch.randn(MANY // 1024, 1024, device=DEVICE, requires_grad=True)
    weight, g = torch.ones(1024, device=DEVICE, requires_grad=True), torch.randn_like(x)

    def norm():
        x.grad = weight.grad = None
        F.layer_norm(x, (1024,), weight, weight).backward(g)

    def gelu():
        x.grad = None
        F.gelu(x).backward(g)

    report("LayerNorm/both/65536x1024", norm)
    report("Gelu/both/float32/64M", gelu)


@torch.no_grad()
def launch_cost():
    if not wanted("LaunchCost/add/1"):
        return
    x = torch.ones(1, device=DEVICE)

    def host_ns(n):
        torch.cuda.synchronize()
        start, y = time.perf_counter(), x
        for _ in range(n):
            y = y + x
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / n * 1e9

    host_ns(1000)
    print("LaunchCost/add/1", statistics.median(host_ns(10000) for _ in range(SAMPLES)), flush=True)


def losses_and_tables():
    x = torch.randn(8192, 50000, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 50000, (8192,), device=DEVICE)

    def forward():
        with torch.no_grad():
            F.cross_entropy(x, target)

    def both():
        x.grad = None
        F.cross_entropy(x, target).backward()

    report("CrossEntropy/forward/8192x50000", forward)
    report("CrossEntropy/both/8192x50000", both)
    table = nn.Embedding(33278, 1500).to(DEVICE)
    ids, g = torch.randint(0, 33278, (35, 20), device=DEVICE), torch.randn(35, 20, 1500, device=DEVICE)

    def look_up():
        with torch.no_grad():
            table(ids)

    def embed():
        table.weight.grad = None
        table(ids).backward(g)

    many = torch.randint(0, 33278, (65536,), device=DEVICE)

    def look_up_many():
        with torch.no_grad():
            table(many)

    report("Embedding/forward/700x1500", look_up)
    report("Embedding/forward/65536x1500", look_up_many)
    report("Embedding/both/700x1500of33278", embed)


@torch.no_grad()
def products():
    for n, dtype, name in ((4096, torch.float32, "float32"), (8192, torch.bfloat16, "bfloat16")):
        x, y = (torch.randn(n, n, dtype=dtype, device=DEVICE) for _ in range(2))
        report(f"Matmul/{name}/{n}", lambda: x @ y)
        if dtype == torch.float32:
            torch.backends.cuda.matmul.allow_tf32 = True
            report(f"Matmul/tf32/{n}", lambda: x @ y)
            torch.backends.cuda.matmul.allow_tf32 = False


def feed_forward():
    """The same work for weft's two forms."""
    for dtype, tf32, name in ((torch.float32, False, "float32"), (torch.bfloat16, False, "bfloat16"),
                              (torch.float32, True, "tf32")):
        x, w1, b1, w2, b2, g = (
            (torch.randn(sizes, dtype=dtype, device=DEVICE) * 0.02).requires_grad_()
            for sizes in ((4096, 1024), (4096, 1024), (4096,), (1024, 4096), (1024,), (4096, 1024)))
        g = g.detach()

        def forward():
            return F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)

        def both():
            return torch.autograd.grad(forward(), (x, w1, b1, w2, b2), g)

        torch.backends.cuda.matmul.allow_tf32 = tf32
        for title in ("FeedForward", "FeedForwardInParts"):
            report(f"{title}/both/{name}/4096x1024x4096", both)
            with torch.no_grad():
                report(f"{title}/forward/{name}/4096x1024x4096", forward)
        torch.backends.cuda.matmul.allow_tf32 = False


class ForeachQhm:
    """QHM by PyTorch's calls over lists of tensors, which has no such optimizer."""

    def __init__(self, parameters, lr, momentum=0.999, nu=0.7):
        self.parameters, self.lr, self.momentum, self.nu = parameters, lr, momentum, nu
        self.averages = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self):
        grads = [p.grad for p in self.parameters]
        torch._foreach_mul_(self.averages, self.momentum)
        torch._foreach_add_(self.averages, grads, alpha=1 - self.momentum)
        torch._foreach_add_(self.parameters, grads, alpha=-self.lr * (1 - self.nu))
        torch._foreach_add_(self.parameters, self.averages, alpha=-self.lr * self.nu)


def optimizer_step(name, make):
    if not wanted(name):
        return
    parameters, count, n = [], 0, 1000
    while count < 250_000_000:
        p = nn.Parameter(torch.randn(n, device=DEVICE))
        p.grad = torch.randn(n, device=DEVICE)
        parameters.append(p)
        count += n
        n = n * 3 if n < 20_000_000 else 1000
    optimizer = make(parameters)
    report(name, optimizer.step)


def optimizers():
    fused = {"fused": True}
    try:
        torch.optim.SGD([nn.Parameter(torch.ones(1, device=DEVICE))], lr=1.0, **fused)
    except TypeError:
        fused = {"foreach": True}
    optimizer_step("Step/SGD/1GB", lambda p: torch.optim.SGD(p, lr=1e-6, **fused))
    optimizer_step("Step/Momentum/1GB", lambda p: torch.optim.SGD(p, lr=1e-6, momentum=0.9, **fused))
    optimizer_step("Step/QHM/1GB", lambda p: ForeachQhm(p, lr=1e-6))
    optimizer_step("Step/Adam/1GB", lambda p: torch.optim.Adam(p, lr=1e-6, fused=True))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, size, dropout):
        super().__init__()
        self.encoder, self.drop = nn.Embedding(vocabulary, size), nn.Dropout(dropout)
        self.rnn, self.decoder = nn.LSTM(size, size, 2, dropout=dropout), nn.Linear(size, vocabulary)

    def loss(self, ids, target):
        y = self.drop(self.rnn(self.drop(self.encoder(ids)))[0])
        return F.cross_entropy(self.decoder(y.reshape(-1, y.size(2))), target)


def language_model(vocabulary, size, dropout):
    names = [f"{kind}/{vocabulary}/{size}"
             for kind in ("LmStep", "LmStepBFloat16", "LmStepGraph", "LmForward",
                          "LmBackward", "LmUpdate")]
    if not any(wanted(name) for name in names):
        return
    torch.manual_seed(1)
    model = LanguageModel(vocabulary, size, dropout).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    ids = torch.randint(0, vocabulary, (35, 20), device=DEVICE)
    target = torch.randint(0, vocabulary, (700,), device=DEVICE)

    def backward(cast=False):
        sgd.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=cast):
            loss = model.loss(ids, target)
        loss.backward()

    def update():
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        sgd.step()

    def step(cast=False):
        backward(cast)
        update()

    report(names[0], step)
    report(names[3], lambda: model.loss(ids, target))
    report(names[4], backward)
    report(names[5], update)
    report(names[1], lambda: step(True))
    if not wanted(names[2]):
        return
    try:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        report(names[2], graph.replay)
    except RuntimeError as error:
        print(f"{names[2]}: cannot be recorded: {error}", file=sys.stderr)


def recurrent_layers():
    for steps, batch, size in ((35, 20, 650), (35, 20, 1500), (100, 64, 256), (100, 64, 512), (64, 128, 1024),
                               (256, 8, 512)):
        for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
            for kind, title, layers in ((nn.LSTM, "Lstm", 1), (nn.GRU, "Gru", 1), (nn.LSTM, "LstmStack4", 4)):
                layer = kind(size, size, layers).to(DEVICE, dtype)
                x = torch.randn(steps, batch, size, dtype=dtype, device=DEVICE, requires_grad=True)
                g = torch.randn(steps, batch, size, dtype=dtype, device=DEVICE)

                def both():
                    layer.zero_grad(set_to_none=True)
                    layer(x)[0].backward(g)

                report(f"{title}/{name}/{steps}x{batch}x{size}", both)


def attention():
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        for width in (64, 128):
            for causal in (False, True):
                sizes = (8, 1024 // width, 2048, width)
                size = f"{name}/8x{sizes[1]}x2048x{width}{'causal' if causal else ''}"
                q, k, v = (torch.randn(sizes, dtype=dtype, device=DEVICE, requires_grad=True)
                           for _ in range(3))
                g = torch.randn(sizes, dtype=dtype, device=DEVICE)

                def attend():
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                report(f"Attention/both/{size}", lambda: torch.autograd.grad(attend(), (q, k, v), g))
                with torch.no_grad():
                    report(f"Attention/forward/{size}", attend)


def transfers():
    pinned, plain = torch.zeros(MANY, pin_memory=True), torch.zeros(MANY)
    there = pinned.to(DEVICE)
    back = torch.zeros(MANY, pin_memory=True)
    report("ToDevice/pinned/256MiB", lambda: pinned.to(DEVICE, non_blocking=True))
    report("ToDevice/pageable/256MiB", lambda: plain.to(DEVICE))
    report("ToHost/pinned/256MiB", lambda: back.copy_(there, non_blocking=True))


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name()}", file=sys.stderr)
    failed = False
    for part in (lambda: language_model(10000, 650, 0.5), lambda: language_model(33278, 1500, 0.65),
                 memory_bound, rows_and_columns, launch_cost, losses_and_tables, products, optimizers,
                 transfers, recurrent_layers, feed_forward, attention):
        try:
            part()
        except RuntimeError as error:  # no memory for its tensors: the others may have it
            print(f"a part ended early: {error}", file=sys.stderr)
            failed = True
    return failed


sys.exit(main())
