// Frames as gRPC slices, without copies of payloads. Each message is handed over on its way to gRPC and back.
// So the thread sanitizer sees that the sender's writes happen before the release.
#include <weft/distributed/transport/inner/grpc_slices.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include <weft/distributed/transport/inner/handoff.h>

namespace weft::rpc::inner {
namespace {

Handoff& release_handoff() {
  static Handoff h;
  return h;
}

void drop_message(void* p) {
  auto* keep = static_cast<std::shared_ptr<OutMessage>*>(p);
  release_handoff().pass();
  delete keep;
}
void drop_string(void* p) { delete static_cast<std::string*>(p); }

}  // namespace

void keep_freed_blocks() {
  constexpr size_t kLargest = 16 << 20;
  gpr_free(gpr_malloc(kLargest));
}

grpc_byte_buffer* to_buffer(Frame frame) {
  struct Slices : std::vector<grpc_slice> {
    ~Slices() {
      for (auto& slice : *this) grpc_slice_unref(slice);
    }
  } slices;
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
  release_handoff().pass();
  frame.recycle();
  return grpc_raw_byte_buffer_create(slices.data(), slices.size());
}

/// gRPC makes the copy: another of its threads may have written the text, as the thread sanitizer cannot see.
std::string to_text(const grpc_slice& slice) {
  const std::unique_ptr<char, void (*)(void*)> copy(grpc_slice_to_c_string(slice), gpr_free);
  return std::string(copy.get(), GRPC_SLICE_LENGTH(slice));
}

struct BufferReader::State {
  grpc_byte_buffer_reader reader;
  grpc_slice* slice;
};

BufferReader::BufferReader() : state_(std::make_unique<State>()) {}
BufferReader::~BufferReader() { end(); }

bool BufferReader::begin() {
  state_->slice = nullptr;
  skipped_ = 0;
  return begun_ = grpc_byte_buffer_reader_init(&state_->reader, buffer_) != 0;
}

std::span<const uint8_t> BufferReader::rest() {
  while (state_->slice == nullptr || skipped_ == GRPC_SLICE_LENGTH(*state_->slice)) {
    skipped_ = 0;
    if (grpc_byte_buffer_reader_peek(&state_->reader, &state_->slice) == 0) return {};
  }
  return {GRPC_SLICE_START_PTR(*state_->slice) + skipped_, GRPC_SLICE_LENGTH(*state_->slice) - skipped_};
}

void BufferReader::end() {
  if (std::exchange(begun_, false)) grpc_byte_buffer_reader_destroy(&state_->reader);
  if (buffer_ != nullptr) grpc_byte_buffer_destroy(std::exchange(buffer_, nullptr));
}

}  // namespace weft::rpc::inner
