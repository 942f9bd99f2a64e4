"""The values of all rows over several runs. A row is steady once two of its runs agree within a tenth."""
import itertools
import re
import statistics

from . import peers, programs

WITHIN = 0.1
MOST_RUNS = 6


def agreed(values):
    """The mean of the two closest values, if they agree."""
    a, b = min(itertools.combinations(sorted(values), 2), key=lambda pair: pair[1] / pair[0],
               default=(None, None))
    return (a + b) / 2 if a and b / a <= 1 + WITHIN else None


class Series:
    """The times of one row, in ns."""

    def __init__(self):
        self.times, self.rate, self.split = [], "", ""

    def value(self):
        return self.times[0] if len(self.times) == 1 else agreed(self.times) or statistics.median(self.times)

    def unsteady(self):
        return len(self.times) > 1 and agreed(self.times) is None


class Results:
    def __init__(self, python=None):
        self.ours, self.peers, self.pairs, self.failed = {}, {}, {}, False
        self.python = python
        self._program_of = {}

    def _add(self, program, rows):
        self.failed = self.failed or rows is None
        for name, row in (rows or {}).items():
            series = self.ours.setdefault(name, Series())
            series.times.append(row.ns)
            series.rate = row.rate or series.rate
            series.split = row.split or series.split
            self._program_of[name] = program

    def run(self, pattern):
        """One run of all rows that match."""
        for program in programs.all_programs():
            self._add(program, programs.run_benchmarks(program, pattern))
        for name in programs.EXAMPLES:
            if re.search(pattern, name):
                self._add(None, programs.run_example(name))
        self._run_peers(pattern)

    def _run_peers(self, pattern):
        if self.python:
            for name, ns in peers.run_peers(self.python, pattern).items():
                self.peers.setdefault(name, Series()).times.append(ns)

    def repeat(self, names):
        """Runs these rows again until each is steady, and PyTorch's; a run has all that are not."""
        for _ in range(MOST_RUNS - 1):
            ours, theirs = ([name for name in names if name in of
                             and (len(of[name].times) < 2 or of[name].unsteady())]
                            for of in (self.ours, self.peers))
            if not ours and not theirs:
                return
            for program in sorted({self._program_of[name] or "" for name in ours} - {""}):
                mine = [name for name in ours if self._program_of[name] == program]
                self._add(program, programs.run_benchmarks(program, programs.exactly(mine)))
            for name in ours:
                if name in programs.EXAMPLES:
                    self._add(None, programs.run_example(name))
            if theirs:
                self._run_peers(programs.exactly(theirs))

    def pair(self, name, other, count=5):
        """The median of the ratios of two rows that run in turns, as a noisy machine needs it."""
        ratios = []
        for _ in range(count):
            for row in (name, other):
                self._add(self._program_of[row],
                          programs.run_benchmarks(self._program_of[row], programs.exactly([row])))
            ratios.append(self.ours[name].times[-1] / self.ours[other].times[-1])
        self.pairs[name] = statistics.median(ratios)

    def time(self, name):
        return self.ours[name].value() if name in self.ours else None

    def peer(self, name):
        return self.peers[name].value() if name in self.peers else None

    def unsteady(self, name):
        return any(name in of and of[name].unsteady() for of in (self.ours, self.peers))
