"""PyTorch's times for the work of our benchmarks, printed as {"name": <our benchmark's name>,
"ns": <median>}. All run on one thread, and training on two besides.

    python3 bench/peers/torch_peers.py [FILTER]

Needs a python with torch, PyPI's or Debian's; nothing else in weft does. scripts/bench.sh --peers calls it.
PyTorch runs in its fastest form that we know: fused optimizers, and a fused loss where it has one. The remote
cases start a second process and call it by torch.distributed.rpc with its default settings.
"""
import collections
import json
import os
import re
import socket
import statistics
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch  # noqa: E402  (after the thread count)
import torch.distributed.autograd as dist_autograd  # noqa: E402
import torch.distributed.rpc as rpc  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402

FAST_BLAS = False
PATTERN = re.compile(sys.argv[1] if len(sys.argv) > 1 else ".")


def median_ns(work, seconds=1.0, inner=1):
    """Median time of one `work()`, in ns, over about `seconds`."""
    work()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        for _ in range(inner):
            work()
        times.append((time.perf_counter() - start) / inner)
    return statistics.median(times) * 1e9


def report(name, work, seconds=1.0, inner=1):
    if PATTERN.search(name):
        print(json.dumps({"name": name, "ns": median_ns(work, seconds, inner)}), flush=True)


def fused(optimizer, parameters, **options):
    """With one kernel per step, which older versions lack on the CPU."""
    try:
        made = optimizer(parameters, fused=True, **options)
        made.step()
        return made
    except (RuntimeError, TypeError):
        return optimizer(parameters, **options)


def has_fast_blas():
    """False for the unoptimised reference BLAS: Debian's torch uses the installed libblas, and that
    comparison would be unfair."""
    torch.rand(8, 8) @ torch.rand(8, 8)
    with open("/proc/self/maps", encoding="utf-8") as file:
        return re.search(r"openblas|mkl|blis", file.read()) is not None


def backward_of(loss, leaves):
    return torch.autograd.grad(loss, leaves)


def chain(op, length=1000):
    x, one = torch.ones(1, requires_grad=True), torch.ones(1)
    y = x
    for _ in range(length):
        y = op(y, one)
    y.backward()


def order_of(size, shape, dims):
    x, ids, line = torch.randn(shape), torch.randint(1000, shape), torch.randint(1000, (1000,))
    divisor, mask, nan = torch.rand(shape) + 0.5, x > 0, torch.tensor(float("nan"))
    holes = torch.where(x > 1, torch.tensor(float("inf")), torch.where(x < -1, nan, x))
    y, picked, counts = x.clone(), x[mask], line % 3

    def case(name, work):
        report(f"order/{name}", work, 0.3)

    def assign(values):
        y[mask] = values
    case(f"median/{size}", x.median)
    case(f"unique/{size}", ids.unique)
    case(f"unique_inverse_counts/{size}", lambda: ids.unique(return_inverse=True, return_counts=True))
    case(f"nan_to_num/{size}", holes.nan_to_num)
    case(f"fmod/{size}", lambda: x.fmod(divisor))
    case(f"fmod_number/{size}", lambda: x.fmod(0.7))
    case(f"floor_divide/{size}", lambda: x.floor_divide(divisor))
    case(f"floor_divide_int64/{size}", lambda: ids.floor_divide(7))
    case(f"isinf/{size}", holes.isinf)
    case(f"diag/{size}", x.diag)
    case(f"index_mask/{size}", lambda: x[mask])
    case(f"assign_mask_number/{size}", lambda: assign(1))
    case(f"assign_mask_values/{size}", lambda: assign(picked))
    case(f"index_put/{size}", lambda: y.index_put_((line,), x))
    case(f"index_put_add/{size}", lambda: y.index_put_((line,), x, accumulate=True))
    flat, weights = ids.reshape(-1), divisor.reshape(-1)
    case(f"bincount/{size}", flat.bincount)
    case(f"bincount_weights/{size}", lambda: flat.bincount(weights))
    for d in dims:
        at = size if len(dims) == 1 else f"{size}/dim{d}"
        case(f"argsort/{at}", lambda d=d: x.argsort(dim=d, stable=True))
        case(f"median_dim/{at}", lambda d=d: x.median(d))
        case(f"repeat_interleave/{at}", lambda d=d: x.repeat_interleave(2, d))
        case(f"repeat_interleave_counts/{at}", lambda d=d: x.repeat_interleave(counts, d))
        case(f"normalize/{at}", lambda d=d: nn.functional.normalize(x, dim=d))
        for rule in ("sum", "prod", "mean", "amax"):
            case(f"scatter_reduce_{rule}/{at}", lambda d=d, rule=rule: x.scatter_reduce(d, ids, x, rule))
        case(f"scatter_reduce_amax_others/{at}",
             lambda d=d: x.scatter_reduce(d, ids, x, "amax", include_self=False))


def pointwise_kernels(n):
    x, z, positive = torch.randn(n), torch.randn(n), torch.rand(n) * 10 + 0.1
    mask, f = x > 0, nn.functional
    calls = {
        "sin": x.sin, "cos": x.cos, "exp": x.exp, "expm1": x.expm1, "log": positive.log,
        "log1p": positive.log1p, "tanh": x.tanh, "sigmoid": x.sigmoid, "erf": x.erf,
        "gelu": lambda: f.gelu(x), "tan": x.tan,
        "silu": lambda: f.silu(x), "softplus": lambda: f.softplus(x), "relu": x.relu, "sqrt": positive.sqrt,
        "rsqrt": positive.rsqrt, "abs": x.abs, "neg": x.neg, "clamp": lambda: x.clamp(-1, 1),
        "round": x.round, "pow_tensor": lambda: positive ** z, "pow_number": lambda: positive ** 2.5,
        "pow_3": lambda: x ** 3, "add": lambda: x + z, "mul": lambda: x * z, "div": lambda: x / positive,
        "maximum": lambda: x.maximum(z), "atan2": lambda: x.atan2(z),
        "remainder": lambda: x.remainder(positive), "fmod": lambda: x.fmod(positive), "gt": lambda: x > z,
        "where": lambda: torch.where(mask, x, z), "masked_fill": lambda: x.masked_fill(mask, 0),
        "clone": x.clone, "to_int64": lambda: x.to(torch.int64), "to_float64": x.double}
    for name in ("float16", "bfloat16"):
        half = getattr(torch, name)
        a, b = x.to(half), z.to(half)
        calls[f"to_{name}"] = lambda half=half: x.to(half)
        calls[f"from_{name}"] = a.float
        calls[f"add_{name}"] = lambda a=a, b=b: a + b
    for name, call in calls.items():
        report(f"kernel/{name}/{n}", call, 0.2, 100 if n <= 1000 else 1)


def kernels():
    """Floats of 1,000 x 1,000, and pointwise ones of 1,000 too: bench/kernels.cpp."""
    pointwise_kernels(1000)
    pointwise_kernels(1_000_000)
    x, z, line = torch.randn(1000, 1000), torch.randn(1000, 1000), torch.randn(1000)
    index, ids, low = torch.randint(1000, (1000,)), torch.randint(1000, (1000, 1000)), x > 10
    leaf, f = x.clone().requires_grad_(), nn.functional

    def case(name, call):
        report(f"kernel/{name}", call, 0.2)

    def both_ways(name, call):
        seed = torch.ones_like(call())
        case(f"{name}_both_ways", lambda: torch.autograd.grad(call(), [leaf], seed))

    def normed(v):
        return f.layer_norm(v, (1000,), line, line)
    for name, call in {
            "sum": x.sum, "mean": x.mean, "var": x.var, "norm": x.norm, "amax": x.amax,
            "flip": lambda: x.flip(0, 1), "transposed": lambda: x.t().contiguous(),
            "add_row": lambda: x + line,
            "add_column": lambda: x + line[:, None], "add_transposed": lambda: x + z.t(),
            "layer_norm": lambda: normed(x), "rand": lambda: torch.rand(1000, 1000),
            "randn": lambda: torch.randn(1000, 1000), "dropout": lambda: f.dropout(x, 0.5),
            "tril": x.tril, "any": low.any}.items():
        case(name, call)
    both_ways("var", leaf.var)
    both_ways("layer_norm", lambda: normed(leaf))
    for d in (0, 1):
        for name, call in {
                "sum": lambda d: x.sum(d), "mean": lambda d: x.mean(d), "var": lambda d: x.var(d),
                "norm": lambda d: x.norm(2, d), "prod": lambda d: x.prod(d), "amax": lambda d: x.amax(d),
                "argmax": lambda d: x.argmax(d), "cumsum": lambda d: x.cumsum(d),
                "logsumexp": lambda d: x.logsumexp(d), "softmax": lambda d: x.softmax(d),
                "log_softmax": lambda d: x.log_softmax(d), "flip": lambda d: x.flip(d),
                "roll": lambda d: x.roll(7, d), "cat": lambda d: torch.cat([x, z], d),
                "index_select": lambda d: x.index_select(d, index), "gather": lambda d: x.gather(d, ids),
                "sort": lambda d: x.sort(dim=d, stable=True), "topk": lambda d: x.topk(10, d)}.items():
            case(f"{name}/dim{d}", lambda d=d, call=call: call(d))
        for name, call in {"var": lambda d: leaf.var(d), "softmax": lambda d: leaf.softmax(d),
                           "index_select": lambda d: leaf.index_select(d, index)}.items():
            both_ways(f"{name}/dim{d}", lambda d=d, call=call: call(d))


def order():
    order_of("1000", (1000,), (0,))
    order_of("1000x1000", (1000, 1000), (0, 1))


def attention():
    heads = [torch.randn(1, 8, 1024, 64, requires_grad=True) for _ in range(3)]
    seed = torch.randn(1, 8, 1024, 64)

    def run(causal=False):
        return nn.functional.scaled_dot_product_attention(*heads, is_causal=causal)

    def forward():
        with torch.no_grad():
            run()

    report("attention/forward", forward)
    report("attention/both_ways", lambda: torch.autograd.grad(run(), heads, seed))
    report("attention/causal_both_ways", lambda: torch.autograd.grad(run(True), heads, seed))
    short = [torch.randn(8, 4, 64, 32) for _ in range(3)]
    report("attention_8x4x64x32", lambda: nn.functional.scaled_dot_product_attention(*short))


def ops():
    x, z = torch.ones(1), torch.ones(1)
    g = torch.ones(1, requires_grad=True)
    report("small_add", lambda: x + z, inner=1000)
    report("small_add_number", lambda: x + 1, inner=1000)
    report("small_add_recorded", lambda: g + z, inner=1000)

    def small_add_both_ways():
        g.grad = None
        (g + z).backward()

    report("small_add_both_ways", small_add_both_ways, inner=100)
    report("chain_of_1000_adds", lambda: chain(torch.add))
    report("chain_of_1000_muls", lambda: chain(torch.mul))
    state, w1, b1, w2, b2 = (torch.randn(n) for n in ((1, 4), (128, 4), 128, (2, 128), 2))
    linear = nn.functional.linear
    report("small_policy_step", lambda: torch.softmax(linear(torch.relu(linear(state, w1, b1)), w2, b2), 1),
           inner=100)
    a, b = torch.ones(10_000_000), torch.ones(10_000_000)
    report("add_10M_floats", lambda: a + b)
    a, b = torch.ones(25_000_000), torch.ones(25_000_000)
    report("add_25M_floats", lambda: a + b)
    a, b = torch.rand(1_000_000) * 10, torch.rand(1_000_000) * 4 - 2
    report("pow_1M_floats/by_tensor", lambda: a ** b)
    report("pow_1M_floats/by_number", lambda: a ** 2.5)
    loss("cross_entropy_700x10000")
    attention()
    table, ids, seed = nn.Embedding(10000, 200), torch.randint(10000, (700,)), torch.randn(700, 200)
    report("EmbeddingStep", lambda: (table.zero_grad(set_to_none=True), table(ids).backward(seed)))
    if FAST_BLAS:
        m, w = torch.randn(700, 200), torch.randn(10000, 200)
        report("matmul_700x200x10000", lambda: linear(m, w))
        for dtype in (torch.float32, torch.bfloat16):
            a, b, of = torch.randn(64, 1024).to(dtype), torch.randn(1024, 1024).to(dtype), str(dtype)[6:]
            report(f"matmul_64x1024x1024/{of}", lambda a=a, b=b: a @ b)
            report(f"matmul_64x1024x1024/{of}_transposed", lambda a=a, b=b: linear(a, b))
        for n in (1024, 2048):
            a, b = torch.randn(n, n), torch.randn(n, n)
            report(f"floor/product/{n}", lambda a=a, b=b: a @ b)
        h, v, c = m.requires_grad_(), (w * 0.1).requires_grad_(), torch.zeros(10000, requires_grad=True)
        target, cross_entropy = torch.randint(10000, (700,)), nn.functional.cross_entropy
        in_parts = lambda: backward_of(cross_entropy(linear(h, v, c), target), [h, v, c])  # noqa: E731
        report("decoder_loss/in_parts", in_parts)
        report("decoder_loss/fused", fused_decoder_loss(h, v, c, target) or in_parts)


def fused_decoder_loss(x, weight, bias, target):
    """The same loss as one operation in blocks; None where this version has none that takes a bias."""
    operation = getattr(nn.functional, "linear_cross_entropy", None)
    options = getattr(nn, "LinearCrossEntropyOptions", None)  # without them it runs in parts
    if operation is None or options is None:
        return None

    def call():
        loss = operation(x, weight, target, linear_bias=bias, options=options())
        return backward_of(loss, [x, weight, bias])

    try:
        call()
    except (RuntimeError, TypeError) as error:
        print(f"torch_peers: linear_cross_entropy: {error}", file=sys.stderr)
        return None
    return call


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, size):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, size)
        self.rnn = nn.LSTM(size, size, 2, dropout=0.2)
        self.drop = nn.Dropout(0.2)
        self.decoder = nn.Linear(size, vocabulary)

    def forward(self, ids):
        y, _ = self.rnn(self.drop(self.encoder(ids)))
        return self.decoder(self.drop(y))


def lm_step(size, threads, vocabulary=10000):
    name = f"{vocabulary}/{size}/{threads}/real_time"
    if not PATTERN.search("LmStep/" + name) and not PATTERN.search("LmForward/" + name):
        return
    model = LanguageModel(vocabulary, size)
    optimizer = fused(torch.optim.SGD, model.parameters(), lr=1.0)
    ids, targets = torch.randint(vocabulary, (35, 20)), torch.randint(vocabulary, (700,))

    def loss():
        return nn.functional.cross_entropy(model(ids).view(-1, vocabulary), targets)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    report("LmStep/" + name, step, seconds=5.0)
    model.eval()
    with torch.no_grad():
        report("LmForward/" + name, loss, seconds=2.0)


def recurrent(kind, size, threads):
    layer, x = kind(size, size), torch.randn(35, 20, size, requires_grad=True)

    def step():
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x)[0].sum().backward()

    report(f"Recurrent<nn::{kind.__name__}>/{size}/{threads}/real_time", step, seconds=2.0)


def inference(size):
    layer, x = nn.LSTM(size, size), torch.randn(1, 1, size)
    with torch.no_grad():
        _, last = layer(x)
        report(f"LstmInference/{size}", lambda: layer(x, last), inner=20)


def sparse_embedding(rows):
    """512 look-ups in a table, backward, and the lazy form of Adam."""
    table, g = nn.Embedding(rows, 64, sparse=True), torch.randn(512, 64)
    adam = torch.optim.SparseAdam(table.parameters(), lr=1e-3)
    ids = [torch.randint(rows, (512,)) for _ in range(64)]
    at = 0

    def step():
        nonlocal at
        at += 1
        adam.zero_grad(set_to_none=True)
        table(ids[at % len(ids)]).backward(g)
        adam.step()

    report(f"SparseEmbeddingStep/{rows}/real_time", step)


def loss(name):
    logits, target = torch.randn(700, 10000, requires_grad=True), torch.randint(10000, (700,))
    cross_entropy = nn.functional.cross_entropy
    report(name, lambda: backward_of(cross_entropy(logits, target), [logits]))


def optimizers(threads):
    def parameters(count=100, size=250_000):
        made = [torch.randn(size, requires_grad=True) for _ in range(count)]
        for p in made:
            p.grad = torch.randn_like(p)
        return made

    sgd, adam = torch.optim.SGD, torch.optim.Adam
    for name, kind, sizes, options in (
            ("Sgd", sgd, (), {}), ("SgdMomentum", sgd, (), {"momentum": 0.9}), ("Adam", adam, (), {}),
            ("SmallSgdMomentum", sgd, (1000, 100), {"momentum": 0.9}), ("SmallAdam", adam, (1000, 100), {})):
        report(f"{name}/{threads}/real_time", fused(kind, parameters(*sizes), lr=1e-3, **options).step)
    clipped = parameters()
    stepped = fused(sgd, clipped, lr=1e-3)

    def clip():
        nn.utils.clip_grad_norm_(clipped, 0.25)

    report(f"ClipGradNorm/{threads}/real_time", clip)
    report(f"ClipSgd/{threads}/real_time", lambda: (clip(), stepped.step()))


def nothing():
    return None


def call_back():
    return rpc.rpc_sync("worker0", nothing)


def my_add(a, b):
    return a + b


def my_add_iteration(a, b):
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync("worker1", my_add, args=(a, b)).sum()])


def local_add(a, b):
    return backward_of(my_add(a, b).sum(), [a, b])


def empty_context():
    with dist_autograd.context():
        pass


def echo(t):
    return t


def remote_cases(transport):
    """(name, work, seconds, inner) of the calls of worker 0."""
    to, end = "worker1", "unix1_tcp2:" + ("2" if transport == "tcp" else "1")
    a, b = torch.rand(3, 3), torch.rand(3, 3)
    cases = [(f"noop_call/{end}/real_time", lambda: rpc.rpc_sync(to, nothing), 2.0, 1),
             (f"add_3x3/{end}/real_time", lambda: rpc.rpc_sync(to, my_add, args=(a, b)), 2.0, 1),
             (f"nested/{end}/real_time", lambda: rpc.rpc_sync(to, call_back), 2.0, 1)]
    for mib in (1, 16, 64):
        t = torch.ones(mib << 18)
        cases.append((f"echo_bytes/{end}/bytes:{mib << 20}/real_time",
                      lambda t=t: rpc.rpc_sync(to, echo, args=(t,)), 2.0, 1))
    waiting = collections.deque()

    def one_of_64():
        while len(waiting) < 64:
            waiting.append(rpc.rpc_async(to, nothing))
        waiting.popleft().wait()

    cases.append((f"outstanding_64/{end}/real_time", one_of_64, 2.0, 640))
    if transport != "tcp":
        p, q = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
        cases += [("MyAdd/0/real_time", lambda: my_add_iteration(p, q), 3.0, 1),
                  ("LocalAdd", lambda: local_add(p, q), 1.0, 1), ("EmptyContext", empty_context, 1.0, 1)]
    return cases


def idle_name(transport):
    return f"noop_after_1ms/unix1_tcp2:{2 if transport == 'tcp' else 1}/iterations:1000/manual_time"


def idle_call(transport):
    """The median of calls that follow a millisecond of sleep."""
    name = idle_name(transport)
    if not PATTERN.search(name):
        return
    times = []
    for _ in range(1000):
        time.sleep(0.001)
        start = time.perf_counter()
        rpc.rpc_sync("worker1", nothing)
        times.append(time.perf_counter() - start)
    print(json.dumps({"name": name, "ns": statistics.median(times) * 1e9}), flush=True)


def worker(rank, port, transport):
    torch.set_num_threads(1)
    force = {"_transports": ["uv"], "_channels": ["basic"]} if transport == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **force)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for case in remote_cases(transport):
            report(*case)
        idle_call(transport)
    rpc.shutdown()


def remote():
    for transport in ("same host", "tcp"):
        names = [case[0] for case in remote_cases(transport)] + [idle_name(transport)]
        if not any(PATTERN.search(name) for name in names):
            continue
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        mp.spawn(worker, args=(port, transport), nprocs=2)


def training(threads):
    torch.set_num_threads(threads)
    if FAST_BLAS:
        for size in (200, 650):
            lm_step(size, threads)
            recurrent(nn.LSTM, size, threads)
        recurrent(nn.GRU, 200, threads)
    loss(f"CrossEntropy/{threads}/real_time")
    optimizers(threads)


if __name__ == "__main__":
    torch.set_num_threads(1)
    FAST_BLAS = has_fast_blas()
    if not FAST_BLAS:
        print("torch_peers: no optimised BLAS (Debian: libopenblas0-pthread), cases with matrix products are "
              "left out", file=sys.stderr)
    ops()
    kernels()
    order()
    if FAST_BLAS:
        for hidden in (32, 128, 512):
            inference(hidden)
    for table_rows in (2000, 200_000):
        sparse_embedding(table_rows)
    for count in (1, 2):
        training(count)
    torch.set_num_threads(1)
    remote()
