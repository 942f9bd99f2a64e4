// Opens NCCL (inner/nccl_library.h) and checks its version. A failure is kept as text, which library()
// throws.
#include <weft/distributed/collectives/inner/nccl_library.h>

#include <weft/distributed/collectives/process_group.h>
#include <weft/kernels/error.h>
#include <weft/kernels/inner/library_file.h>

namespace weft::dist {

namespace inner::nccl {
namespace {

constexpr int kOldest = 21400;  // with calls that do not wait for other processes

struct Opened {
  Library functions;
  std::string error;
  Opened() {
    LibraryFile file("WEFT_NCCL_LIBRARY", "libnccl.so.2", nullptr);
#define WEFT_NCCL_FIND(name, ...) file.find(functions.name, #name);
    WEFT_NCCL_CALLS(WEFT_NCCL_FIND)
#undef WEFT_NCCL_FIND
    std::string why = file.missing();
    int version = 0;
    if (why.empty() && (functions.ncclGetVersion(&version) != Result::kSuccess || version < kOldest))
      why = str("its version is ", version);
    if (!why.empty())
      error = str("collectives between devices need NCCL 2.14 or newer, which cannot be used: ", why,
                  "; install it, or set WEFT_NCCL_LIBRARY to the path of libnccl.so.2");
  }
};
const Opened& opened() {
  static const auto* const once = new Opened;  // never destroyed
  return *once;
}

}  // namespace

const Library& library() {
  if (!missing().empty()) throw DeviceError(missing());
  return opened().functions;
}

const std::string& missing() { return opened().error; }

}  // namespace inner::nccl

bool is_nccl_available() { return inner::nccl::missing().empty(); }

}  // namespace weft::dist
