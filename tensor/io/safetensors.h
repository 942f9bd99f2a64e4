// Safetensors files: a JSON header and packed little-endian data, the format that PyTorch, JAX and Hugging
// Face tools exchange. The dtypes are written as BOOL, U8, I32, I64, F16, BF16, F32 and F64. I8, I16 and U16
// are read as int32, U32 as int64; other types are refused. Tensors that share all their memory (tied
// weights) are stored once: `__metadata__` then holds "weft.alias.<name>" = "<stored name>", and loading
// gives both names one tensor.
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

/// The contents of a file.
struct SafetensorsFile {
  NamedTensors tensors;  ///< in the order of the file's data, then the aliases
  Metadata metadata;     ///< without the alias entries
  /// The tensor of that name, undefined if there is none.
  Tensor find(const std::string& name) const {
    for (const auto& [key, value] : tensors)
      if (key == name) return value;
    return Tensor();
  }
};

/// Reads a whole file into CPU tensors.
/// Throws: IoError that names the file and the fault: missing, short, bad JSON, holes, overlaps, an unknown
/// dtype, a size unlike its shape.
WEFT_API SafetensorsFile load_safetensors(const std::string& path);

/// Replaces the file as write_file (tensor/io/write_file.h) does. Tensors may be on any device and have any
/// strides; values are written row-major.
/// Throws: ValueError for an undefined tensor, a repeated name or views that overlap in part; IoError if the
/// file cannot be written.
WEFT_API void save_safetensors(const std::string& path, const NamedTensors& tensors,
                               const Metadata& metadata = {});

}  // namespace weft
