"""Cases and files of golden values: seeded inputs, a run under PyTorch with a random cotangent, and a
safetensors writer.

Every case draws from its own numpy generator, seeded by the names of its file and itself. So a new case
changes no old one.
"""
import json
import os
import struct
import zlib

import numpy as np
import torch

SEED = 1111
# Writer order: later in this list first, then by name. So every tensor is aligned without holes.
DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.float16: "F16", torch.bfloat16: "BF16",
          torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
RANK = {name: rank for rank, name in enumerate(DTYPES.values())}


def raw(tensor):
    """The bytes of a tensor in C order, little-endian."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array = tensor.numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def write_safetensors(path, tensors, metadata):
    """Header length (u64), JSON padded with blanks to a multiple of 8, then the buffers without holes;
    written beside, then renamed."""
    header, buffers, offset = {"__metadata__": metadata}, [], 0
    for name in sorted(tensors, key=lambda n: (-RANK[DTYPES[tensors[n].dtype]], n)):
        data = raw(tensors[name])
        header[name] = {"dtype": DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(data)]}
        buffers.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(buffers))
    os.replace(path + ".part", path)
    return 8 + len(text) + offset


class Draw:
    """Seeded inputs. Everything is drawn in float32, so that the float64 form of a case has exactly the same
    numbers."""

    def __init__(self, *names):
        self.rng = np.random.Generator(np.random.PCG64([SEED, zlib.crc32("/".join(names).encode())]))

    def normal(self, *shape, scale=1.0, dtype=torch.float32):
        return torch.from_numpy(
            np.asarray(self.rng.standard_normal(shape) * scale, dtype=np.float32)).to(dtype)

    def uniform(self, low, high, *shape, dtype=torch.float32):
        return torch.from_numpy(np.asarray(self.rng.uniform(low, high, shape), dtype=np.float32)).to(dtype)

    def integers(self, low, high, *shape):
        return torch.from_numpy(np.asarray(self.rng.integers(low, high, shape), dtype=np.int64))

    def distinct(self, *shape):
        """Numbers without ties: a shuffled grid, so that maxima and sorted orders are unambiguous."""
        count = int(np.prod(shape))
        grid = (self.rng.permutation(count) - count // 2) * 0.25
        return torch.from_numpy(grid.astype(np.float32)).reshape(shape)

    def away_from_zero(self, *shape):
        """Uniform in [0.3, 2) with random signs: clear of kinks and poles."""
        sign = torch.from_numpy(self.rng.integers(0, 2, shape).astype(np.float32)) * 2 - 1
        return self.uniform(0.3, 2.0, *shape) * sign


class GoldenFile:
    """One safetensors file. In a file of several cases each name starts with `<case>.`"""

    def __init__(self, name, about):
        self.name, self.tensors = name, {}
        self.metadata = {"about": about, "format": "pt", "seed": str(SEED), "torch": torch.__version__,
                         "written_by": "scripts/make_goldens.py"}

    def draw(self, case=""):
        return Draw(self.name, case)

    def put(self, name, tensor):
        if name in self.tensors:
            raise ValueError(f"{self.name}: {name} exists already")
        self.tensors[name] = tensor.detach().clone()

    def note(self, case, text):
        key = f"case.{case}" if case else "case"
        if key in self.metadata:
            raise ValueError(f"{self.name}: the case {case} exists already")
        self.metadata[key] = text

    def run(self, case, about, compute, inputs, params=None, grad=True):
        """Stores inputs, parameters, the outputs of compute(*inputs) and the gradients of sum(output *
        cotangent).

        `compute` returns one tensor (stored as y) or a dict. Floating inputs, parameters and outputs take
        part in the gradient. Gradients that PyTorch reports as absent are left out. grad=False stores the
        outputs alone.
        """
        self.note(case, about)
        prefix = case + "." if case else ""
        leaves = ({"in." + n: t for n, t in inputs.items()}
                  | {"param." + n: t for n, t in (params or {}).items()})
        for name, tensor in leaves.items():
            self.put(prefix + name, tensor)
            if grad and tensor.is_floating_point():
                tensor.requires_grad_(True)
        outputs = compute(*inputs.values())
        if not isinstance(outputs, dict):
            outputs = {"y": outputs}
        draw, total = Draw(self.name.replace("_f64", ""), case, "cotangents"), None
        for name, y in outputs.items():
            self.put(f"{prefix}out.{name}", y)
            if grad and y.requires_grad:
                cotangent = draw.normal(*y.shape, dtype=y.dtype)
                self.put(f"{prefix}cot.{name}", cotangent)
                term = (y * cotangent).sum()
                total = term if total is None else total + term
        if not grad:
            return
        if total is None:
            raise ValueError(f"{self.name}: {case}: no output to differentiate")
        total.backward()
        for name, tensor in leaves.items():
            if tensor.grad is not None:
                self.put(f"{prefix}grad.{name}", tensor.grad)

    def write(self, folder):
        metadata = {key: self.metadata[key] for key in sorted(self.metadata)}
        size = write_safetensors(os.path.join(folder, self.name + ".safetensors"), self.tensors, metadata)
        print(f"{self.name + '.safetensors':36s}{len(self.tensors):5d} tensors{size:9d} bytes")
        return size
