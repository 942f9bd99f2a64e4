// Frames as gRPC slices, without copies of payloads. Each message passes a mutex on its way to gRPC and
// back. So the sender's writes happen before the release (thread sanitizer cannot see into gRPC).
#include <weft/distributed/transport/inner/grpc_slices.h>

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::inner {
namespace {

Mutex& release_mutex() {
  static Mutex m;
  return m;
}

void drop_message(void* p) {
  auto* keep = static_cast<std::shared_ptr<OutMessage>*>(p);
  {
    // orders the sender's writes before the release
    MutexLock lock(release_mutex());
  }
  delete keep;
}
void drop_string(void* p) { delete static_cast<std::string*>(p); }

}  // namespace

grpc_byte_buffer* to_buffer(Frame frame) {
  std::vector<grpc_slice> slices;
  slices.reserve(frame.pieces.size());
  for (auto& piece : frame.pieces) {
    if (piece.keep != nullptr) {
      auto* keep = new std::shared_ptr<OutMessage>(std::move(piece.keep));
      slices.push_back(
          grpc_slice_new_with_user_data(const_cast<void*>(piece.data), piece.bytes, drop_message, keep));
    } else if (piece.own.size() <= 1024) {
      slices.push_back(grpc_slice_from_copied_buffer(piece.own.data(), piece.own.size()));
    } else {
      auto* own = new std::string(std::move(piece.own));
      slices.push_back(grpc_slice_new_with_user_data(own->data(), own->size(), drop_string, own));
    }
  }
  { MutexLock lock(release_mutex()); }
  grpc_byte_buffer* buffer = grpc_raw_byte_buffer_create(slices.data(), slices.size());
  for (auto& slice : slices) grpc_slice_unref(slice);
  return buffer;
}

}  // namespace weft::rpc::inner
