// Tensors in safetensors files: a JSON header and packed little-endian data, the form PyTorch, JAX and Hugging Face tools exchange.
// dtypes go as BOOL, U8, I32, I64, F16, BF16, F32, F64; other types of the format are refused by name. Tensors that share all their memory
// (tied weights) are stored once; `__metadata__` then holds "weft.alias.<name>" = "<stored name>", and loading gives both names one tensor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft {

/// Tensors by name, in order.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
/// Text by name, in order.
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsFile {
  NamedTensors tensors;  ///< in the order of the file's data; aliases behind
  Metadata metadata;     ///< without the alias notes
  /// The tensor of that name, undefined when there is none.
  Tensor find(const std::string& name) const {
    for (const auto& [key, value] : tensors)
      if (key == name) return value;
    return Tensor();
  }
};

/// Reads a whole file into CPU tensors. Throws: IoError that names the file and what is wrong with it (missing, short, bad JSON, holes,
/// overlaps, a size that does not fit its shape, an unknown dtype).
WEFT_API SafetensorsFile load_safetensors(const std::string& path);

/// Writes a sibling temporary file and renames it. Any device and strides; values are written row-major. Throws: ValueError for an undefined
/// tensor, a repeated name or views that overlap in part; IoError when the file cannot be written.
WEFT_API void save_safetensors(const std::string& path, const NamedTensors& tensors,
                               const Metadata& metadata = {});

}  // namespace weft
