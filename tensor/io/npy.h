// NumPy files: one tensor as .npy, several as .npz (a zip of .npy members, written without compression).
// bool, uint8, int32, int64, float16, float32 and float64 are exact. NumPy has no bfloat16: it is written as
// '|V2', two raw bytes, which is read back as bfloat16. Integers of int8, int16 and uint16 are read as int32,
// uint32 as int64; they are never written.
//   save_npy("x.npy", x);
//   const Tensor y = load_npy("x.npy");
#pragma once

#include <string>

#include <weft/tensor/io/safetensors.h>

namespace weft {

/// Reads a file into a row-major CPU tensor; column-major files are transposed in memory.
/// Throws: IoError that names the file and the fault; it names object and other unsupported types.
WEFT_API Tensor load_npy(const std::string& path);
/// Writes format version 1.0, with the header padded so that the data begins at a multiple of 64. Replaces
/// the file as write_file (tensor/io/write_file.h) does. Throws: IoError.
WEFT_API void save_npy(const std::string& path, const Tensor& x);

/// Members in file order, names without ".npy", stored (np.savez) or deflated (np.savez_compressed, in a
/// build with zlib).
/// Throws: IoError, also for unpacked data that does not match its size and checksum, and for a member of an
/// unsupported type.
WEFT_API NamedTensors load_npz(const std::string& path);
/// The named members only, in that order; the others are not read.
/// Throws: IoError, also for a name that the file lacks.
WEFT_API NamedTensors load_npz(const std::string& path, const std::vector<std::string>& names);
/// Replaces the file as write_file does.
/// Throws: IoError; ValueError for a repeated or empty name, or a name that would unpack outside its folder
/// ("../a", "/a", "c:a").
WEFT_API void save_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace weft
