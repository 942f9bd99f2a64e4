// .npy files of one tensor (tensor/io/npy.h). npy_format.h parses and writes the header; the file's length
// must match the shape in it.
#include <weft/tensor/io/npy.h>

#include <weft/tensor/inner/launch.h>
#include <weft/tensor/io/inner/file_io.h>
#include <weft/tensor/io/inner/npy_format.h>

namespace weft {

Tensor load_npy(const std::string& path) {
  detail::FileReader file("load_npy", path);
  try {
    unsigned char first[12];
    const size_t available = file.size() < 12 ? static_cast<size_t>(file.size()) : 12;
    file.read(first, available);
    uint64_t prefix = 0, length = 0;
    detail::read_npy_prefix(first, available, prefix, length);
    if (length > file.size() - prefix)
      throw IoError(str("the header claims ", length, " bytes, the file has ", file.size()));
    file.seek(prefix);
    std::string text(length, '\0');
    file.read(text.data(), length);
    const detail::NpyHeader header = detail::read_npy_dictionary(text);
    const uint64_t bytes = detail::npy_data_bytes(header);
    if (bytes != file.size() - file.position())
      throw IoError(str("shape ", header.sizes, " of ", header.dtype, " takes ", bytes,
                        " bytes, the file has ", file.size() - file.position()));
    return detail::read_npy_data(header, [&](void* to, uint64_t n) { file.read(to, n); });
  } catch (const IoError& e) {
    if (std::string_view(e.what()).starts_with("load_npy: ")) throw;
    file.fail(e.what());
  }
}

void save_npy(const std::string& path, const Tensor& x) {
  launch::check_defined("save_npy", x);
  const Tensor host = detail::host_copy(x);
  const std::string header = detail::write_npy_header(x.dtype(), x.sizes());
  detail::FileWriter file("save_npy", path);
  file.write(header.data(), header.size());
  file.write(host.address(), static_cast<uint64_t>(host.numel() * size_of(host.dtype())));
  file.commit();
}

}  // namespace weft
