"""The frames that compare_cases reads and answers (tests/support/compare/frame.h), and the process itself.
Needs Python alone."""

import dataclasses
import os
import resource
import select
import struct
import subprocess
import threading

DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
SIZES = (1, 1, 4, 8, 2, 2, 4, 8)
OK, CALL_ERROR, BACKWARD_ERROR, MALFORMED = range(4)


@dataclasses.dataclass
class T:
    """A tensor argument: a storage of raw bytes and the geometry over it. `dtype` is an index into DTYPES."""

    dtype: int
    sizes: tuple
    strides: tuple
    offset: int
    data: bytes
    grad: bool = False


class Sizes(tuple):
    """A list of sizes or dims."""


class TypeNumber(int):
    """A dtype argument."""


@dataclasses.dataclass
class Answer:
    """`outputs` and `grads` hold None or (flags, dtype, sizes, bytes)."""

    status: int
    outputs: list = dataclasses.field(default_factory=list)
    grads: list = dataclasses.field(default_factory=list)
    error: tuple = None


def tensor(t):
    if t is None:
        return b"U"
    numbers = (*t.sizes, *t.strides, t.offset, len(t.data) // SIZES[t.dtype])
    return struct.pack(f"<cBBB{len(numbers)}q", b"T", t.grad, t.dtype, len(t.sizes), *numbers) + t.data


def argument(value):
    if value is None or isinstance(value, T):
        return tensor(value)
    if isinstance(value, Sizes):
        return struct.pack(f"<cB{len(value)}q", b"S", len(value), *value)
    if isinstance(value, list):
        return struct.pack("<cH", b"L", len(value)) + b"".join(map(tensor, value))
    if isinstance(value, bool):
        return struct.pack("<cB", b"b", value)
    if isinstance(value, int):
        return struct.pack("<cq", b"i", value)
    if isinstance(value, float):
        return struct.pack("<cd", b"d", value)
    text = value.encode()
    return struct.pack("<cH", b"s", len(text)) + text


def request(name, arguments, cotangents=()):
    body = [
        struct.pack("<B", len(name)),
        name.encode(),
        struct.pack("<B", len(arguments)),
        *map(argument, arguments),
        struct.pack("<H", len(cotangents)),
        *map(tensor, cotangents),
    ]
    body = b"".join(body)
    return struct.pack("<I", len(body)) + body


class Reader:
    def __init__(self, body):
        self.body, self.at = body, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.body, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self):
        (length,) = self.take("I")
        self.at += length
        return self.body[self.at - length : self.at].decode("utf-8", "replace")

    def tensors(self):
        return [self.tensor() for _ in range(self.take("H")[0])]

    def tensor(self):
        if self.take("c")[0] == b"U":
            return None
        flags, dtype, rank = self.take("BBB")
        sizes = self.take(f"{rank}q")
        count = SIZES[dtype]
        for size in sizes:
            count *= size
        self.at += count
        return flags, dtype, sizes, self.body[self.at - count : self.at]


def answer(body):
    reader = Reader(body)
    out = Answer(reader.take("B")[0])
    if out.status in (OK, BACKWARD_ERROR):
        out.outputs = reader.tensors()
    if out.status == OK:
        out.grads = reader.tensors()
    else:
        out.error = (reader.text(), reader.text())
    return out


class Died(Exception):
    """The program ended, or gave no answer in time, while the first case without an answer was its turn."""


class Program:
    """One running compare_cases. Cases are sent by a thread, since the program stops reading while nobody
    takes its answers."""

    def __init__(self, path, seconds=30, memory=8 << 30):
        self.path, self.seconds, self.memory = path, seconds, memory
        self.process = None

    def start(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (self.memory, self.memory))
        self.process = subprocess.Popen(
            [self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=limit
        )
        self.buffer = bytearray()

    def send(self, frames):
        if self.process is None:
            self.start()
        self.writer = threading.Thread(
            target=self.write, args=(self.process.stdin, b"".join(frames)), daemon=True
        )
        self.writer.start()

    @staticmethod
    def write(pipe, data):
        try:
            pipe.write(data)
            pipe.flush()
        except (BrokenPipeError, ValueError):
            pass  # the reader finds out

    def receive(self):
        """The next answer. Raises Died with the reason; the process is gone then."""
        (length,) = struct.unpack("<I", self.read(4))
        return answer(self.read(length))

    def read(self, count):
        pipe = self.process.stdout.fileno()
        while len(self.buffer) < count:
            if not select.select([pipe], [], [], self.seconds)[0]:
                self.stop()
                raise Died(f"no answer within {self.seconds} s")
            chunk = os.read(pipe, 1 << 20)
            if not chunk:
                code = self.process.wait()
                self.stop()
                raise Died(
                    f"the program ended by signal {-code}" if code < 0 else f"the program ended with {code}"
                )
            self.buffer += chunk
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
            self.process = None

    def answers(self, frames):
        """Answers of frames already sent; a case that ends the program has the text of its end instead, and
        the rest is sent again."""
        out = []
        while len(out) < len(frames):
            try:
                out.append(self.receive())
            except Died as end:
                out.append(str(end))
                if len(out) < len(frames):
                    self.send(frames[len(out) :])
        return out
