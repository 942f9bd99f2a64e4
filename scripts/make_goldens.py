"""Writes the golden values of tests/golden with PyTorch as the oracle. Only this script needs PyTorch; the
tests read the files.

    python3 scripts/make_goldens.py [--only NAME] [FOLDER]

Debian: apt-get install --no-install-recommends python3-torch python3-numpy. FOLDER defaults to tests/golden.
Inputs are the same everywhere (seeded numpy streams); outputs may differ in the last bits where the CPU or
the version of PyTorch differs. At the end the table of three optimizer steps and a one-cell LSTM are printed
beside the specification's numbers.
"""
import argparse
import os
import sys
import warnings

sys.dont_write_bytecode = True

import torch

from goldens import layers, losses, npz, ops, optim
from goldens.store import SEED


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", default=os.path.join(root, "tests", "golden"))
    parser.add_argument("--only", metavar="NAME", help="write the files whose name contains NAME")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    print(f"PyTorch {torch.__version__}, seed {SEED}")
    os.makedirs(options.folder, exist_ok=True)
    sizes = [file.write(options.folder) for part in (layers, losses, npz, ops, optim) for file in part.files()
             if not options.only or options.only in file.name]
    print(f"{len(sizes)} files, {sum(sizes)} bytes")
    optim.print_table()
    layers.print_cell()


main()
