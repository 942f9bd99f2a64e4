"""PyTorch's times for the work of our examples, printed as torch_peers.py prints them: CartPole with one
observer, and the word language model in one process or split over two.

    python3 bench/peers/torch_programs.py [FILTER]

Each process has one thread. The programs follow PyTorch's tutorials on torch.distributed.rpc.
"""
import json
import math
import os
import random
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
from torch.distributed.optim import DistributedOptimizer  # noqa: E402
from torch.distributions import Categorical  # noqa: E402

PATTERN = re.compile(sys.argv[1] if len(sys.argv) > 1 else ".")
SECONDS = 8.0


def tell(name, ns):
    print(json.dumps({"name": name, "ns": ns}), flush=True)


# ---- CartPole

class Environment:
    """A pole on a cart, as Gym's CartPole-v1 has it."""

    def __init__(self, seed):
        self.draws = random.Random(seed)

    def reset(self):
        self.steps = 0
        self.state = [self.draws.uniform(-0.05, 0.05) for _ in range(4)]
        return torch.tensor([self.state])

    def step(self, action):
        x, speed, angle, turn = self.state
        push, sine, cosine = 10.0 if action else -10.0, math.sin(angle), math.cos(angle)
        shared = (push + 0.05 * turn * turn * sine) / 1.1
        swing = (9.8 * sine - cosine * shared) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        pull = shared - 0.05 * swing * cosine / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * swing]
        self.steps += 1
        over = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12) or self.steps == 500
        return torch.tensor([self.state]), 1.0, over


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2),
                                    nn.Softmax(1))
        self.adam = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.logs, self.rewards = [], []

    def select(self, state):
        choice = Categorical(self.policy(state))
        action = choice.sample()
        self.logs.append(choice.log_prob(action))
        return action.item()

    def report(self, reward):
        self.rewards.append(reward)

    def report_and_select(self, reward, state):
        if reward is not None:
            self.report(reward)
        return self.select(state)

    def learn(self):
        total, returns = 0.0, []
        for reward in reversed(self.rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        values = torch.tensor(returns)
        values = (values - values.mean()) / (values.std() + 1e-8)
        self.adam.zero_grad()
        (-torch.cat(self.logs) * values).sum().backward()
        self.adam.step()
        self.logs, self.rewards = [], []


class Observer:
    def __init__(self, form):
        self.environment, self.form = Environment(1), form

    def play(self, agent):
        state, reward, over = self.environment.reset(), None, False
        while not over:
            if self.form == "two":
                action = agent.rpc_sync().select(state)
            else:
                action = agent.rpc_sync().report_and_select(reward, state)
            state, reward, over = self.environment.step(action)
            if self.form == "two" or over:
                agent.rpc_sync().report(reward)
        return self.environment.steps


def cartpole(form):
    name = f"CartPole/{form}"
    if not PATTERN.search(name):
        return
    agent = Agent()
    shared, observer = rpc.RRef(agent), rpc.remote("worker1", Observer, args=(form,))
    observer.rpc_sync().play(shared)
    agent.learn()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        steps += observer.rpc_sync(timeout=0).play(shared)
        agent.learn()
    tell(name, (time.perf_counter() - start) / steps * 1e9)


# ---- the word language model

class Sizes:
    def __init__(self, name, words, size, hidden, layers, batch, steps, dropout):
        self.name, self.words, self.size, self.hidden, self.layers = name, words, size, hidden, layers
        self.batch, self.steps, self.dropout = batch, steps, dropout


SIZES = [Sizes("tutorial", 10, 2, 3, 4, 5, 3, 0.5), Sizes("10000/200", 10000, 200, 200, 2, 20, 35, 0.2)]


class Encoder(nn.Module):
    def __init__(self, words, size, dropout):
        super().__init__()
        self.table, self.drop = nn.Embedding(words, size), nn.Dropout(dropout)

    def forward(self, ids):
        return self.drop(self.table(ids))


class Decoder(nn.Module):
    def __init__(self, words, hidden, dropout):
        super().__init__()
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(hidden, words)

    def forward(self, y):
        return self.out(self.drop(y))


def references_of(module):
    return [rpc.RRef(p) for p in module.local_value().parameters()]


def batch_of(sizes):
    shape = (sizes.steps, sizes.batch)
    return torch.randint(sizes.words, shape), torch.randint(sizes.words, (sizes.steps * sizes.batch,))


def measure(name, step):
    if not PATTERN.search(name):
        return
    for _ in range(3):
        step()
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    tell(name, statistics.median(times) * 1e9)


def local_model(sizes):
    encoder, decoder = Encoder(sizes.words, sizes.size, sizes.dropout), Decoder(sizes.words, sizes.hidden,
                                                                                sizes.dropout)
    layer = nn.LSTM(sizes.size, sizes.hidden, sizes.layers, dropout=sizes.dropout)
    all_of = [p for module in (encoder, layer, decoder) for p in module.parameters()]
    sgd = torch.optim.SGD(all_of, lr=0.05)

    def step():
        ids, targets = batch_of(sizes)
        sgd.zero_grad()
        logits = decoder(layer(encoder(ids))[0])
        nn.functional.cross_entropy(logits.view(-1, sizes.words), targets).backward()
        nn.utils.clip_grad_norm_(all_of, 0.25)
        sgd.step()

    measure(f"Rnn/{sizes.name}/local", step)


def split_model(sizes):
    encoder = rpc.remote("worker1", Encoder, args=(sizes.words, sizes.size, sizes.dropout))
    decoder = rpc.remote("worker1", Decoder, args=(sizes.words, sizes.hidden, sizes.dropout))
    layer = nn.LSTM(sizes.size, sizes.hidden, sizes.layers, dropout=sizes.dropout)
    references = [rpc.RRef(p) for p in layer.parameters()]
    for module in (encoder, decoder):
        references += rpc.rpc_sync("worker1", references_of, args=(module,))
    optimizer = DistributedOptimizer(torch.optim.SGD, references, lr=0.05)

    def step():
        ids, targets = batch_of(sizes)
        with dist_autograd.context() as context:
            y, _ = layer(encoder.rpc_sync().forward(ids))
            logits = decoder.rpc_sync().forward(y)
            loss = nn.functional.cross_entropy(logits.view(-1, sizes.words), targets)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)

    measure(f"Rnn/{sizes.name}/split", step)


def worker(rank, port):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=600)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for form in ("two", "fused"):
            cartpole(form)
        for sizes in SIZES:
            if PATTERN.search(f"Rnn/{sizes.name}/split"):
                split_model(sizes)
    rpc.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for model in SIZES:
        if PATTERN.search(f"Rnn/{model.name}/local"):
            local_model(model)
    if any(PATTERN.search(name) for name in ("CartPole/two", "CartPole/fused",
                                             *(f"Rnn/{model.name}/split" for model in SIZES))):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        mp.spawn(worker, args=(free,), nprocs=2)
