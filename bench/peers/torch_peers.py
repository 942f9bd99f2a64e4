"""PyTorch's times for the work of our benchmarks, each printed as {"name": <our benchmark's name>, "ns": <median>}, on one thread.

    python3 bench/peers/torch_peers.py [FILTER]

Needs a python with torch (Debian: python3-torch), which the rest of weft never does. Called by scripts/bench.sh --peers. The remote cases
start a second process and talk to it over torch.distributed.rpc as it comes.
"""
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


def has_fast_blas():
    """Debian's torch runs on whatever libblas is installed; against the unoptimised reference one a comparison would flatter us."""
    torch.rand(8, 8) @ torch.rand(8, 8)
    with open("/proc/self/maps", encoding="utf-8") as file:
        return re.search(r"openblas|mkl|blis", file.read()) is not None


def ops():
    x, z = torch.zeros(1), torch.zeros(1)
    g = torch.zeros(1, requires_grad=True)
    report("add_one_element", lambda: x + z, inner=1000)
    report("add_one_element_recorded", lambda: g + z, inner=1000)
    report("add_one_element_backward", lambda: (g + z).backward(), inner=1000)
    a, b = torch.rand(1 << 20), torch.rand(1 << 20)
    report("add/1048576", lambda: a + b)
    report("tanh/1048576", lambda: torch.tanh(a))
    report("exp/1048576", lambda: torch.exp(a))
    report("sum/1048576", lambda: a.sum())
    for m, k, n in ((256, 256, 256), (1024, 1024, 1024), (700, 200, 10000)) if FAST_BLAS else ():
        p, q = torch.rand(m, k), torch.rand(k, n)
        report(f"matmul/{m}/{k}/{n}", lambda p=p, q=q: p @ q)
    logits = torch.randn(700, 10000)
    report("softmax/700/10000", lambda: torch.softmax(logits, 1))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, hidden, layers):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, hidden)
        self.rnn = nn.LSTM(hidden, hidden, layers, dropout=0.2)
        self.drop = nn.Dropout(0.2)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, ids, state):
        y, _ = self.rnn(self.drop(self.encoder(ids)), state)
        return self.decoder(self.drop(y))


def lm_step(hidden):
    vocabulary, layers, batch, steps = 10000, 2, 20, 35
    name = f"lm_step/{vocabulary}/{hidden}/{hidden}/{layers}"
    if not PATTERN.search(name):
        return
    model = LanguageModel(vocabulary, hidden, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids = torch.randint(vocabulary, (steps, batch))
    targets = torch.randint(vocabulary, (steps * batch,))
    state = (torch.zeros(layers, batch, hidden), torch.zeros(layers, batch, hidden))

    def step():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(ids, state).view(-1, vocabulary), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    report(name, step, seconds=5.0)


def optimizers():
    def parameters():
        made = [torch.randn(1 << 16, requires_grad=True) for _ in range(16)]
        for p in made:
            p.grad = torch.randn_like(p)
        return made

    report("sgd_step/16/65536", torch.optim.SGD(parameters(), lr=1e-3).step)
    report("sgd_momentum_step/16/65536", torch.optim.SGD(parameters(), lr=1e-3, momentum=0.9).step)
    report("adam_step/16/65536", torch.optim.Adam(parameters(), lr=1e-3).step)


def nothing():
    return None


def my_add(a, b):
    return a + b


def my_add_iteration():
    with dist_autograd.context() as context:
        a, b, t = (torch.rand(3, 3, requires_grad=True) for _ in range(3))
        c = rpc.rpc_sync("worker1", my_add, args=(a, b))
        dist_autograd.backward(context, [torch.mul(c, t).sum()])
        return dist_autograd.get_gradients(context)


def worker(rank, port):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        a, b = torch.rand(3, 3), torch.rand(3, 3)
        report("rpc_sync_noop", lambda: rpc.rpc_sync("worker1", nothing), seconds=3.0)
        report("rpc_sync_my_add", lambda: rpc.rpc_sync("worker1", my_add, args=(a, b)), seconds=3.0)
        report("dist_autograd_my_add", my_add_iteration, seconds=3.0)
    rpc.shutdown()


def remote():
    if not any(PATTERN.search(name) for name in ("rpc_sync_noop", "rpc_sync_my_add", "dist_autograd_my_add")):
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    FAST_BLAS = has_fast_blas()
    if not FAST_BLAS:
        print("torch_peers: no optimised BLAS (Debian: libopenblas0-pthread), cases with matrix products are left out", file=sys.stderr)
    ops()
    if FAST_BLAS:
        lm_step(200)
    optimizers()
    remote()
