// Blocks of memory. A CPU block of up to 64 bytes lies in the same allocation as its header: one-element tensors (losses, probabilities,
// CartPole states) then cost one free-list pop instead of two.
#include <weft/tensor/storage.h>

#include <new>

#include <weft/kernels/accelerator.h>
#include <weft/tensor/free_list.h>

namespace weft {

Ref<Storage> Storage::allocate(Device device, size_t bytes) {
  static_assert(sizeof(Storage) <= 64);
  if (bytes <= kInlineBytes && device.is_cpu()) {
    char* block = static_cast<char*>(pool_allocate(64 + kInlineBytes));
    return Ref<Storage>::adopt(new (block) Storage(device, block + 64, bytes, nullptr, nullptr));
  }
  Backend& from = backend(device);
  void* data = from.allocate(bytes);
  void* header;
  try {
    header = pool_allocate(sizeof(Storage));
  } catch (...) {
    from.deallocate(data, bytes);
    throw;
  }
  return Ref<Storage>::adopt(new (header) Storage(device, data, bytes, nullptr, &from));
}

Ref<Storage> Storage::allocate_pinned(size_t bytes) {
  Accelerator& from = accelerator(DeviceType::kCuda);
  void* const header = pool_allocate(sizeof(Storage));
  void* data;
  try {
    data = from.allocate_pinned(bytes);
  } catch (...) {
    pool_free(header, sizeof(Storage));
    throw;
  }
  return Ref<Storage>::adopt(new (header) Storage(kCpu, data, bytes, &pinned, &from));
}

Ref<Storage> Storage::borrow(Device device, void* data, size_t bytes, void (*release)(void*), void* context) {
  static constexpr auto keep = [](void*) {};
  return Ref<Storage>::adopt(new (pool_allocate(sizeof(Storage)))
                                 Storage(device, data, bytes, release ? release : +keep, context));
}

void Storage::pinned(void*) {}

void Storage::destroy(Storage* s) noexcept {
  const bool with_data = s->is_inline();
  if (s->is_pinned()) static_cast<Accelerator*>(s->context_)->deallocate_pinned(s->data_);
  else if (s->release_) s->release_(s->context_);
  else if (!with_data) static_cast<Backend*>(s->context_)->deallocate(s->data_, s->bytes_);
  s->~Storage();
  pool_free(s, with_data ? 64 + kInlineBytes : sizeof(Storage));
}

}  // namespace weft
