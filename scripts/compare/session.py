"""A run over many cases: batches go to weft while PyTorch computes the next one; differences are judged,
explained or shrunk."""

import collections
import subprocess
import sys
import time
import warnings

import torch

from . import layers, order, pointwise, reductions, shapes, training, writes  # each fills the table
from . import frames, judge, rules, shrink
from .draw import Draw, describe
from .table import SPECS

BATCH = 128


def specs(pattern):
    return [spec for spec in SPECS if pattern.search(spec.name)]


def without_counterpart(path):
    """The rows of the program that no case calls, and the cases that have no row."""
    rows = set(subprocess.run([path, "--rows"], capture_output=True, text=True, check=True).stdout.split())
    names = {spec.name for spec in SPECS}
    lost = [f"compare_torch: the row {name} has no case in scripts/compare" for name in sorted(rows - names)]
    return lost + [f"compare_torch: the case {name} has no row in {path}" for name in sorted(names - rows)]


class Session:
    def __init__(self, chosen, seed, path, show, explained):
        warnings.filterwarnings("ignore")
        self.specs, self.seed, self.show, self.show_explained = chosen, seed, show, explained
        self.program = frames.Program(path)
        self.weights = [spec.weight for spec in chosen]
        self.found = collections.Counter()  # (operation, kind): unexplained
        self.explained = collections.Counter()  # rule
        self.per_op = collections.Counter()
        self.differences = 0

    def make(self, number):
        d = Draw(self.seed, number)
        spec = d.r.choices(self.specs, self.weights)[0]
        return judge.Case(spec, number, spec.draw(d), seed=self.seed), d

    def answer_of_torch(self, case, generator):
        t = judge.run(case.spec.torch, case.arguments, generator=generator)
        case.cotangents = t.cotangents
        return t

    @staticmethod
    def frame(case):
        return frames.request(case.spec.name, case.arguments, case.cotangents)

    def batch(self, numbers):
        out = []
        for number in numbers:
            case, d = self.make(number)
            out.append((case, self.answer_of_torch(case, d.generator)))
        return out, [self.frame(case) for case, _ in out]

    def judge(self, case, t, w):
        truth = lambda: judge.run(case.spec.torch, case.arguments, case.cotangents, change=judge.upcast)
        told = judge.difference(case, t, w, truth)
        return told and (*told, rules.explain(case, t, w, *told))

    def both(self, case):
        """Runs one case on both sides; its difference or None."""
        t = judge.run(case.spec.torch, case.arguments, generator=torch.Generator().manual_seed(case.number))
        case.cotangents = t.cotangents
        frame = self.frame(case)
        self.program.send([frame])
        return self.judge(case, t, self.program.answers([frame])[0])

    def take(self, case, t, w):
        self.per_op[case.spec.name] += 1
        told = self.judge(case, t, w)
        if not told:
            return
        kind, text, rule = told
        self.differences += 1
        if rule:
            self.explained[rule] += 1
            if self.show_explained and self.explained[rule] == 1:
                self.report(case, kind, text, f"explained by {rule}")
            return
        self.found[case.spec.name, kind] += 1
        if self.found[case.spec.name, kind] <= self.show:
            self.report(case, kind, text, None)

    def report(self, case, kind, text, note):
        print(f"\n{case.spec.name}: {note or kind} (--seed {self.seed} --case {case.number})")
        small, told = shrink.shrink(case, kind, self.both) if not note else (case, (kind, text, None))
        for value in small.arguments:
            print("   ", describe(value)[:300])
        print("   ", told[1][:400], flush=True)

    def all(self, count):
        start, said = time.monotonic(), 0.0
        waiting = None
        for first in range(0, count, BATCH):
            made = self.batch(range(first, min(first + BATCH, count)))
            self.collect(waiting)
            self.program.send(made[1])
            waiting = made
            now = time.monotonic() - start
            if now - said > (2 if sys.stderr.isatty() else 30):
                said, rate = now, (first + BATCH) / now
                print(
                    f"{first + BATCH} of {count} cases, {rate:.0f}/s, "
                    f"{(count - first - BATCH) / rate:.0f} s left, "
                    f"{self.differences} differences",
                    file=sys.stderr,
                    flush=True,
                )
        self.collect(waiting)
        return self.figures(count)

    def collect(self, waiting):
        if waiting is None:
            return
        cases, sent = waiting
        for (case, t), w in zip(cases, self.program.answers(sent)):
            self.take(case, t, w)

    def one(self, number):
        case, d = self.make(number)
        self.show = 1
        t = self.answer_of_torch(case, d.generator)
        for value in case.arguments:
            print("   ", describe(value))
        frame = self.frame(case)
        self.program.send([frame])
        self.take(case, t, self.program.answers([frame])[0])
        return self.figures(1)

    def figures(self, count):
        self.program.stop()
        for rule, times in sorted(self.explained.items()):
            print(f"explained {times:6d}  {rule}: {rules.SENTENCES[rule]}")
        for (name, kind), times in sorted(self.found.items()):
            print(f"not explained {times:6d}  {name}: {kind}")
        return {
            "cases": count,
            "differences": self.differences,
            "explained": sum(self.explained.values()),
            "rules": dict(self.explained),
            "operations": dict(self.per_op),
            "unexplained": {f"{name}: {kind}": times for (name, kind), times in self.found.items()},
        }
