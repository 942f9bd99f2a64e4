"""The list of compared operations: a Spec says how a case is drawn and which call of PyTorch answers it."""

import dataclasses
from typing import Callable


@dataclasses.dataclass
class Spec:
    name: str  # of the row in tests/support/compare
    draw: Callable  # Draw -> arguments in the row's order
    torch: Callable  # the same arguments, tensors as torch's, -> tensor or list
    exact: bool = False  # moves numbers, or compares them: no rounding is allowed
    spread: bool = False  # sums many numbers: rounding counts against the largest of the result
    rough: float = (
        1  # factor on the relative error: a chain of many functions, or a division by a small difference
    )
    floor: float = 1e-6  # the least of that largest number: of a difference of numbers near 1 it is 1
    zeros: bool = False  # the sign of a zero counts
    view: bool = False  # whether the result shares its storage counts
    weight: float = 1.0  # how often it is drawn
    types: str = ""  # how tensors of several dtypes meet: see rules.documented
    meets: tuple = None  # positions of the tensors that meet; None: all
    rebuild: Callable = None  # for writes in place: the call of PyTorch made from a method
    method: Callable = None  # and that method


SPECS = []


def op(name, draw, torch, **options):
    SPECS.append(Spec(name, draw, torch, **options))
