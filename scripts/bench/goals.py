"""The rows that weft measures itself by: their work in words, their floor and their goal. A row with a goal
tells the reason of a miss and at least two ways that were tried, for the machines where it misses. A way has
its figures in brackets. A row without a floor tells why it has none.

A floor is the least time that the machine allows, by other rows of the same run: products at the best rate of
a large one, bytes at the rate of a copy, or a row of its own. It is orientation. A goal is judged by the
steady times of one run: True, False, or None where a number for it is missing.
"""
from dataclasses import dataclass, field
from typing import Callable

COPIED = 200e6  # bytes that a run of floor/copy reads and writes


# ---- floors: functions of the results that give ns or None

def row(name, times=1):
    def floor(results):
        ns = results.time(name)
        return ns and times * ns
    return Floor(floor, [name])


def least(*names, times=1):
    def floor(results):
        ns = min((results.time(name) for name in names if results.time(name)), default=None)
        return ns and times * ns
    return Floor(floor, list(names))


def products(gflop):
    sizes = (1024, 2048)

    def floor(results):
        rates = [2 * n ** 3 / ns for n in sizes
                 for ns in (results.time(f"floor/product/{n}"), results.peer(f"floor/product/{n}")) if ns]
        return gflop * 1e9 / max(rates) if rates else None  # flop per ns
    return Floor(floor, [f"floor/product/{n}" for n in sizes])


def copies(count):
    def floor(results):
        ns = results.time("floor/copy")
        return ns and count / COPIED * ns
    return Floor(floor, ["floor/copy"])


@dataclass(frozen=True)
class Floor:
    of: Callable
    rows: list


def decoder(size):
    return 3 * 2 * 700 * size * 10000 / 1e9


def recurrent(size, gates=4):
    return 3 * 2 * 700 * 2 * size * gates * size / 1e9


# ---- goals

@dataclass
class Case:
    """The numbers of a row; a pair is the ratio to the floor of runs in turns."""
    results: object
    ns: float
    peer: float
    floor: float
    pair: float

    @property
    def ratio(self):
        return self.peer / self.ns if self.peer else None

    def goal_over_floor(self, wish):
        """The time that a lead over PyTorch allows, in floors."""
        return self.peer / wish.ahead / self.floor if self.peer and self.floor and wish.ahead else None

    @property
    def over_floor(self):
        return self.pair or (self.ns / self.floor if self.floor else None)


@dataclass(frozen=True)
class Wish:
    text: str
    met: Callable
    rows: list = field(default_factory=list)
    ahead: float = None  # the factor to PyTorch


def ahead(ratio):
    return Wish(f">= {ratio:g} x PyTorch", lambda case: case.ratio and case.ratio >= ratio, ahead=ratio)


def near(factor):
    return Wish(f"<= {factor:g} x floor", lambda case: case.over_floor and case.over_floor <= factor)


def share_of_floor(share):
    return Wish(f"floor >= {share:g} x ours", lambda case: case.over_floor and case.over_floor <= 1 / share)


def streams(count):
    """At most so many streams of memory, for a floor that copies them."""
    return Wish(f"<= {count} streams at the rate of a copy",
                lambda case: case.over_floor and case.over_floor <= 1)


def within(ns, text):
    return Wish(text, lambda case: case.ns <= ns)


def per_second(rate, what):
    return within(1e9 / rate, f">= {rate:,} {what}/s")


def below(name, text, factor=1.0):
    def met(case):
        other = case.results.time(name)
        return other and case.ns <= factor * other
    return Wish(text, met, [name])


def both(a, b):
    def met(case):
        parts = [a.met(case), b.met(case)]
        return None if None in parts else all(parts)
    return Wish(f"{a.text} and {b.text}", met, a.rows + b.rows, a.ahead or b.ahead)


def either(a, b):
    def met(case):
        parts = [a.met(case), b.met(case)]
        return any(parts) if any(parts) or None not in parts else None
    return Wish(f"{a.text} or {b.text}", met, a.rows + b.rows)


@dataclass(frozen=True)
class Goal:
    work: str
    name: str
    floor: Floor = None
    wish: Wish = None
    pairs: bool = False  # the ratio to the floor is measured in turns
    why: str = ""  # the reason found for a miss, "; tried: " and the ways; shown for a row that misses
    no_floor: str = ""  # the reason why a row has no floor; shown under the table


def remote(name, tcp=False, more=""):
    return f"{name}/unix1_tcp2:{2 if tcp else 1}{more}/real_time"


def after_sleep(tcp):
    return f"noop_after_1ms/unix1_tcp2:{2 if tcp else 1}/iterations:1000/manual_time"


def echo(mib, tcp=False):
    return remote("echo_bytes", tcp, f"/bytes:{mib << 20}")


def round_trips(count):
    """That many of a bare socket, one after the other."""
    return least("floor/socket/spinning/manual_time", "floor/socket/blocking/manual_time", times=count)


ROWS = 512 * 64 * 4 * 9  # bytes: look-ups and gradients written and read, a rule's three arrays both ways
IDLE_SOCKET = row("floor/socket/idle/iterations:1000/manual_time")
OUTSTANDING_SOCKET = row("floor/socket/outstanding_64/manual_time", 1 / 64)
STREAM = "floor/grpc/tcp/64/real_time"

BY_PRODUCTS = (
    "most of the time are products, near the rate of the floor, as PyTorch's are; tried: blocks that stay in "
    "cache (107 to 142 GFLOP/s at 700 x 650 x 2,600), blocked weights of oneDNN (44 against 27 ms), MKL "
    "by the same operations (129 against 109 ms a step at H 200, 814 against 676 at H 650)")

RECURRENT = (
    "at H 200 the tiles of products take 74 % of the time by perf, packing 10 %, the cells 6 %; tried: few "
    "rows that read weights in place (20 x 256 x 256 from 128 to 154 GFLOP/s), packs of sixteen rows at once "
    "(20 x 256 x 256, transposed, from 82 to 103), MKL by the same operations (129 against 109 ms a step)")

STEP = (
    "the order in which a loop reads its places sets its rate, on each processor another one: on a Xeon the "
    "floor's loop over the tensors of the step took 13.3 to 13.9 of its 14.6 to 15.0 ms; tried: fetches 1 or "
    "2 KiB ahead (1 to 2 % there, nothing on an AMD EPYC), four places side by side (13.1 and 13.2 ms there, "
    "but 8.0 for 5.2 on the EPYC, which has one place), two places (5.0 on the EPYC)")

ADDITION = (
    "two sleeping threads are woken per call where spins do not meet; tried: spins of 50 us after short "
    "waits (FAST: 266 to 274, then 80 to 116 us; SMART: 261 to 269, then 116 to 141), sockets of our own in "
    "place of gRPC (a call from 141 to 58 us then)")

GOALS = [
    Goal("LM step 10000/200/200/2, batch 20, 35 steps", "LmStep/10000/200/1/real_time",
         products(decoder(200) + 2 * recurrent(200)), ahead(1.5), why=BY_PRODUCTS),
    Goal("LM step 10000/650/650/2", "LmStep/10000/650/1/real_time",
         products(decoder(650) + 2 * recurrent(650)), ahead(1.4), why=BY_PRODUCTS),
    Goal("LSTM layer 200, forward and backward", "Recurrent<nn::LSTM>/200/1/real_time",
         products(recurrent(200)), ahead(1.6), why=RECURRENT),
    Goal("LSTM layer 650", "Recurrent<nn::LSTM>/650/1/real_time", products(recurrent(650)), ahead(1.25),
         why="its products at the rate of the floor take 80 to 90 % of the time; tried: blocks that stay in "
             "cache (107 to 142 GFLOP/s at 700 x 650 x 2,600), b packed just before its use (53 to 75 at 20 "
             "x 650 x 2,600, transposed), kept packs (128 to 138 there, oneDNN 87), MKL by the same "
             "operations (814 against 676 ms a step of the language model)"),
    Goal("GRU layer 200", "Recurrent<nn::GRU>/200/1/real_time", products(recurrent(200, 3)), ahead(2),
         why=RECURRENT),
    Goal("product 700 x 200 x 10000, out of place", "matmul_700x200x10000", products(2.8), ahead(1.15),
         why="it runs at the rate of the floor, as PyTorch's does; tried: strips of a that meet 512 columns "
             "of b and so write rows of c in order (109 to 117, then 137 to 149 GFLOP/s), blocked weights "
             "of oneDNN (44.2 against 27.5 ms)"),
    Goal("decoder and loss in parts", "decoder_loss/in_parts", products(decoder(200))),
    Goal("decoder and loss fused", "decoder_loss/fused", products(decoder(200)),
         both(ahead(1.6), below("decoder_loss/in_parts", "below the parts")),
         why="three products near the rate of the floor; tried: blocks of 256 and of 512 classes that stay "
             "in cache (71.6 to 63.6 ms), our tile for them (68.0), tiles of 14 rows (120 of 155 GFLOP/s)"),
    Goal("cross-entropy 700 x 10000, both ways", "cross_entropy_700x10000", copies(56e6),
         either(ahead(4), near(1.3)),
         why="by perf 39 % of the time was the first read of the logits, 45 % their exponentials; tried: the "
             "gradient made in forward (2.8 to 2.05 ms), the next block fetched beside the exponentials of "
             "this one (2.05 to 1.64), memory of the gradient fetched too (1.63 to 1.68)"),
    Goal("SGD over 25M floats", "Sgd/1/real_time", row("floor/sgd"), share_of_floor(0.95), pairs=True,
         why=STEP),
    Goal("SGD with momentum over 25M floats", "SgdMomentum/1/real_time", row("floor/momentum"),
         share_of_floor(0.95), pairs=True, why=STEP),
    Goal("Adam over 25M floats", "Adam/1/real_time", row("floor/adam"), share_of_floor(0.95),
         pairs=True, why=STEP),
    Goal("clip and SGD over 25M floats", "ClipSgd/1/real_time", copies(4 * 100e6),
         both(ahead(1.4), streams(4)),
         why="four streams of memory are the least, and the norm reads one of them more slowly than a copy "
             "does (14 to 16 ms for 100 MB from one place); tried: one pass less by a factor in the step "
             "(48.9 to 37.9 ms), four places read side by side (7 to 8, then 12.3 GB/s), floats converted by "
             "one instruction of AVX-512 (15.6 to 14.2 ms)"),
    Goal("Adam over 1,000 tensors of 100 floats", "SmallAdam/1/real_time", row("floor/small_adam"),
         ahead(25),
         why="40 % is the kernel, most of the rest are waits for headers of parameters and state; tried: one "
             "functor for a group (512 to 655 us before, 254 to 315 after), entries fetched ahead (147 to "
             "166, then 152 to 158 us on an AMD EPYC)"),
    Goal("lazy Adam, 512 look-ups in 200,000 x 64", "SparseEmbeddingStep/200000/real_time", copies(ROWS),
         below("SparseEmbeddingStep/2000/real_time", "<= 1.5 x 2,000 rows", 1.5),
         why="512 rows with their averages are 6,144 lines that no cache has; tried: rows fetched eight "
             "entries ahead (66 to 22.5 us of the step), one to 32 ahead (49 to 22)"),
    Goal("the same in 2,000 x 64", "SparseEmbeddingStep/2000/real_time", copies(ROWS)),
    Goal("call without arguments, same host, awake", remote("noop_call"), round_trips(1),
         within(25e3, "<= 25 us"),
         why="two sleeping threads are woken per call where spins do not meet; tried: sockets of our own in "
             "place of gRPC (141 to 58 us then), spins of 20 us (26 to 38 for 39 to 46) and of 50 us after "
             "short waits (13 to 15 for 71 to 76)"),
    Goal("the same after 1 ms of sleep", after_sleep(False), IDLE_SOCKET, within(60e3, "<= 60 us"),
         why="two sleeping threads are woken, for which a bare socket took 53 us in one run and 6 in "
             "another; tried: sockets of our own in place of gRPC over TCP (85 against 151 us), spins of "
             "50 us that are over by then (83 to 90 with, 85 without), service threads without ticks (41, "
             "39, 53 to 27, 24, 27 us on an AMD EPYC, but awake from 20, 7.7, 7.9 to 42, 31, 53)"),
    Goal("call without arguments, TCP", remote("noop_call", True), row(STREAM), near(1.1), pairs=True,
         why="the agent's work comes on top of the stream's; tried: a thread of its own for the queue (173 "
             "to 102 us), spins of 50 us (131 to 162 without and 48 to 90 with)"),
    Goal("echo of 1 MiB, same host", echo(1), row(f"floor/two_copies/{1 << 20}")),
    Goal("echo of 16 MiB, same host", echo(16), row(f"floor/two_copies/{16 << 20}"), near(1.15),
         why="it is the floor's two copies, nearly all of the time in memmove by perf; tried: sockets "
             "of our own with payloads read into the memory of the tensor (35.7 to 10.8 ms), memory files in "
             "place of the socket (2.66 ms in the kept table of a Xeon), fetches 2 KiB ahead in the "
             "sender's copy (three turns of an EPYC, 1.72, 2.96, 1.50 to 1.97, 2.85, 1.71 ms), its stores "
             "past the caches (1.40, 1.46, 1.39 to 1.32, 1.28, 1.51)"),
    Goal("echo of 64 MiB, same host", echo(64), row(f"floor/two_copies/{64 << 20}"), ahead(4),
         why="two copies into warm memory alone take a quarter of PyTorch's time or more; tried: payloads "
             "read into the memory of the tensor (109 to 41 ms), memory files in place of the socket (18.7 "
             "ms in the kept table of a Xeon); a block that changes its owner in place of a copy was not "
             "tried"),
    *(Goal(f"echo of {mib} MiB, TCP", echo(mib, True), row(f"floor/grpc/tcp/{mib << 20}/real_time"), near(1),
           why="payloads are copied once more, from gRPC's slices into one block; tried: frames of 2 and 4 "
               "MiB (16 MiB: 15.2 and 14.6 ms, 12.7 with 1 MiB), freed blocks that stay in the process "
               "(11.8, 21.3, 15.2 to 7.7, 8.8, 7.9)")
      for mib in (1, 16, 64)),
    Goal("64 futures outstanding, same host", remote("outstanding_64"), OUTSTANDING_SOCKET,
         per_second(120_000, "calls"),
         why="runs of one program on a Xeon took 7.0 to 8.6 us, and the goal is 8.3; tried: waits that keep "
             "the polling (7.3 against 7.8 us, means of four runs), polls without a timer (7.8 against 7.7, "
             "of three)"),
    Goal("64 futures outstanding, TCP", remote("outstanding_64", True),
         no_floor="the bare stream of gRPC has one message under way"),
    Goal("context, remote addition, backward, FAST", "MyAdd/0/real_time", round_trips(2),
         within(160e3, "<= 160 us"), why=ADDITION),
    Goal("the same, SMART", "MyAdd/1/real_time", round_trips(2), within(220e3, "<= 220 us"), why=ADDITION),
    Goal("nested call, same host", remote("nested"), round_trips(2), within(70e3, "<= 70 us"),
         why="threads of two processes are woken twice where spins do not meet; tried: sockets of our own in "
             "place of gRPC (321 to 59 us), spins of 50 us after short waits (134 to 139, then 31 to 47), "
             "long waits that leave the polling (100, 69, 68, then 38, 30, 47)"),
    Goal("split RNN step, tutorial sizes", "Rnn/tutorial/split", row("Rnn/tutorial/local"),
         within(0.7e6, "<= 0.7 ms"),
         why="a local step is a seventh of it or less, and the calls are the rest; tried, on an AMD EPYC: "
             "sockets of our own in place of gRPC (350, 341, 335 to 277, 305, 267 us), spins of 50 us after "
             "short waits (563, 591, 562 to 277, 305, 267 us)"),
    Goal("split RNN step 10000/200/200/2, logits travel", "Rnn/10000/200/split", row("Rnn/10000/200/local"),
         near(1.15),
         why="28 MB of logits and 28 MB of their gradients are copied once each way; tried, on an AMD EPYC: "
             "memory files in place of the socket (68.0, 69.4, 66.8 to 63.2, 63.8, 61.7 ms), the loss at the "
             "decoder's owner (the next row, 57.0, 57.8, 57.8 ms)"),
    Goal("the same, the loss travels", "Rnn/10000/200/split_loss", row("Rnn/10000/200/local"), near(1.15),
         why="it is the local step besides the calls; tried: the loss at the decoder's owner in place of the "
             "logits (117 to 103 ms on a Xeon), memory files in place of the socket (60.0, 57.3, 58.2 and "
             "57.0, 57.8, 57.8 ms on an AMD EPYC)"),
    Goal("CartPole, two calls per step, compiled policy", "CartPole/two", round_trips(2),
         per_second(10_000, "steps"),
         why="the calls take most of a step; tried: spins of 50 us (4,700 to 4,840 and 8,610 to 10,310 "
             "steps/s), the policy compiled (6,250 to 8,070 and 7,540 to 8,740), long waits that leave the "
             "polling (7,500 to 11,380 and 16,800 to 17,150)"),
    Goal("CartPole, one call per step, compiled", "CartPole/fused", round_trips(1),
         per_second(15_000, "steps"),
         why="the call takes most of a step; tried: spins of 50 us (7,950 to 8,530 and 9,920 to 13,500 "
             "steps/s), the policy compiled (9,310 to 11,150 and 12,330 to 12,580), long waits that leave "
             "the polling (11,910 to 15,350 and 22,730 to 23,270)"),
    Goal("addition of one element, no gradient", "small_add", row("floor/small_add"),
         within(80, "<= 80 ns"),
         why="643 instructions, of which about 200 are needed; tried: no views or loops for equal shapes and "
             "inline free lists (1125 to 751), tables outside functions (751 to 681), no objects for casts "
             "that do not happen (681 to 638), copies of ndim entries of a shape (9 instructions for 10)"),
    Goal("the same, forward and backward", "small_add_both_ways", None, within(300, "<= 300 ns"),
         why="4,427 instructions over many functions; tried: a pass that allocates nothing (6786 to 4278), a "
             "gradient of ones that the host writes (150 less, but a backend that records would miss it); "
             "sequence numbers in blocks and saved bodies would break other promises",
         no_floor="the least work of a pass was not counted"),
    *(Goal(f"LSTM inference, one step, H {size}, batch 1", f"LstmInference/{size}",
           row(f"floor/two_linears/{size}"), near(1.3),
           why="an LSTM step makes more outputs than two products; tried: states joined without a copy (2.5 "
               "to 2.1 us at H 32), weights read in place (1.74 to 1.39), states without views and one "
               "product of all gates (1.03 to 0.57)") for size in (32, 128, 512)),
    *(Goal(f"{work}, two threads", f"{name}/2/real_time", no_floor="the row on one thread has one")
      for work, name in (
        ("LM step 10000/200/200/2", "LmStep/10000/200"), ("LM step 10000/650/650/2", "LmStep/10000/650"),
        ("LSTM layer 200", "Recurrent<nn::LSTM>/200"), ("LSTM layer 650", "Recurrent<nn::LSTM>/650"),
        ("GRU layer 200", "Recurrent<nn::GRU>/200"), ("cross-entropy 700 x 10000", "CrossEntropy"),
        ("SGD over 25M floats", "Sgd"), ("SGD with momentum", "SgdMomentum"),
        ("Adam over 25M floats", "Adam"), ("clip and SGD", "ClipSgd"))),
]


def all_rows():
    """The names of all rows that the table of goals needs."""
    names = {}
    for goal in GOALS:
        needed = (goal.floor.rows if goal.floor else []) + (goal.wish.rows if goal.wish else [])
        names.update(dict.fromkeys([goal.name, *needed]))
    return list(names)


def case_of(goal, results):
    return Case(results, results.time(goal.name), results.peer(goal.name),
                goal.floor.of(results) if goal.floor else None, results.pairs.get(goal.name))
