// The .npy header in memory (library internal), shared by plain files and zip members.
#pragma once

#include <string>
#include <string_view>

#include <weft/tensor/tensor.h>

namespace weft::detail {

struct NpyHeader {
  DType dtype = kFloat32;
  bool fortran_order = false;
  Shape sizes;
};

/// Magic, version, length and text for a row-major tensor; a multiple of 64 bytes.
std::string write_npy_header(DType dtype, const Shape& sizes);
/// Bytes before the dictionary (10 or 12) and its length, from the first 12 bytes. Throws: IoError without the file's name.
void read_npy_prefix(const unsigned char* first, size_t available, uint64_t& prefix, uint64_t& length);
/// The dictionary text. Throws: IoError without the file's name.
NpyHeader read_npy_dictionary(std::string_view text);
/// Bytes of the data. Throws: IoError when the sizes are too large.
uint64_t npy_data_bytes(const NpyHeader& header);
/// The row-major tensor from data that `fill(pointer, bytes)` reads.
template <class F> Tensor read_npy_data(const NpyHeader& header, F&& fill);
/// Column-major to row-major: x holds the elements in reversed sizes.
Tensor npy_from_fortran(const Tensor& reversed, const Shape& sizes);
void npy_normalise_bools(const Tensor& x);

template <class F> Tensor read_npy_data(const NpyHeader& header, F&& fill) {
  const uint64_t bytes = npy_data_bytes(header);
  Shape sizes = header.sizes;
  if (header.fortran_order)
    for (int d = 0; d < sizes.size(); ++d) sizes[d] = header.sizes[sizes.size() - 1 - d];
  Tensor x = empty(sizes, {.dtype = header.dtype});
  fill(x.raw(), bytes);
  npy_normalise_bools(x);
  return header.fortran_order ? npy_from_fortran(x, header.sizes) : x;
}

}  // namespace weft::detail
