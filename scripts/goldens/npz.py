"""An archive that numpy itself compressed, of numbers that the test knows: its members are .npy files packed
by deflate."""
import os

import numpy as np


class Compressed:
    name = "numpy_deflate"

    def write(self, folder):
        path = os.path.join(folder, self.name + ".npz")
        quarters = np.arange(1000, dtype=np.float32).reshape(10, 100) * np.float32(0.25)
        members = {"quarters": quarters, "columns": np.asfortranarray(quarters[:3, :4]),
                   "squares": np.arange(77, dtype=np.int64) ** 2, "odd": np.arange(9) % 2 == 1,
                   "scalar": np.float64(-1.5), "empty": np.zeros((0, 3), dtype=np.float32),
                   "zeros": np.zeros(100000, dtype=np.uint8)}
        np.savez_compressed(path, **members)
        size = os.path.getsize(path)
        print(f"{self.name + '.npz':36s}{len(members):5d} tensors{size:9d} bytes")
        return size


def files():
    yield Compressed()
