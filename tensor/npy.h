// NumPy files: one tensor as .npy, several as .npz (a zip of .npy members, written without compression). bool, uint8, int32, int64, float16,
// float32 and float64 are exact; bfloat16 has no NumPy type and goes as '|V2', two raw bytes, which is read back as bfloat16.
#pragma once

#include <string>

#include <weft/tensor/safetensors.h>

namespace weft {

/// Throws: IoError that names the file and what is wrong with it; object and other unsupported types are refused by name. Column-major
/// files come out row-major.
WEFT_API Tensor load_npy(const std::string& path);
/// Format version 1.0, header padded so that the data begins at a multiple of 64. Throws: IoError.
WEFT_API void save_npy(const std::string& path, const Tensor& x);

/// Members in file order, names without ".npy", stored (np.savez) or deflated (np.savez_compressed, in a build with zlib). Throws: IoError;
/// what a member unpacks to is checked against its size and checksum.
WEFT_API NamedTensors load_npz(const std::string& path);
/// Throws: ValueError for a repeated or empty name, IoError.
WEFT_API void save_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace weft
