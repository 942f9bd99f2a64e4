// The .npy header in memory, for plain files and zip members.
#pragma once

#include <string>
#include <string_view>

#include <weft/tensor/io/inner/file_ints.h>

namespace weft::detail {

struct NpyHeader {
  DType dtype = kFloat32;
  FileInt stored = FileInt::kNone;  ///< the file's type if it is narrower than dtype
  bool fortran_order = false;
  Shape sizes;
};

/// The header of a row-major tensor: magic, version, length and text, padded to a multiple of 64 bytes.
std::string write_npy_header(DType dtype, const Shape& sizes);
/// Number of bytes before the dictionary (10 or 12) and the length of the dictionary, from the first 12
/// bytes. Throws: IoError without the file's name.
void read_npy_prefix(const unsigned char* first, size_t available, uint64_t& prefix, uint64_t& length);
/// Parses the dictionary. Throws: IoError without the file's name.
NpyHeader read_npy_dictionary(std::string_view text);
/// Size of the data in bytes. Throws: IoError if it is too large.
uint64_t npy_data_bytes(const NpyHeader& header);
/// The row-major tensor of the data, which `fill(pointer, bytes)` reads.
template <class F> Tensor read_npy_data(const NpyHeader& header, F&& fill);
/// Converts column-major to row-major data: `reversed` holds the elements with reversed sizes.
Tensor npy_from_fortran(const Tensor& reversed, const Shape& sizes);
void npy_normalise_bools(const Tensor& x);

template <class F> Tensor read_npy_data(const NpyHeader& header, F&& fill) {
  const uint64_t bytes = npy_data_bytes(header);
  Shape sizes = header.sizes;
  if (header.fortran_order)
    for (int d = 0; d < sizes.size(); ++d) sizes[d] = header.sizes[sizes.size() - 1 - d];
  Tensor x = empty(sizes, {.dtype = header.dtype});
  if (header.stored != FileInt::kNone) read_widened(header.stored, x, fill);
  else fill(x.address(), bytes);
  npy_normalise_bools(x);
  return header.fortran_order ? npy_from_fortran(x, header.sizes) : x;
}

}  // namespace weft::detail
