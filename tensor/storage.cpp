// Storage: its memory, and its marks. A CPU block of up to 64 bytes is in the same allocation as its header.
// So one-element tensors need one allocation instead of two.
//
// Packs of operands (kernels/cpu/packs.h) are found by the number of writes to their block. So a block keeps
// packs only while each write counts: its address has not left the library, the memory is the allocator's
// own, and no step replaces it. The program's promise for a frozen block counts as much.
#include <weft/tensor/storage.h>

#include <cstring>
#include <memory>
#include <new>

#include <weft/kernels/accelerator.h>
#include <weft/kernels/cpu/cpu_backend.h>
#include <weft/kernels/cpu/packs.h>
#include <weft/kernels/error.h>
#include <weft/tensor/inner/free_list.h>
#include <weft/tensor/inner/parameter_lock.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {

Ref<Storage> Storage::allocate(Device device, size_t bytes) {
  static_assert(sizeof(Storage) <= 64);
  const auto told = [](Storage* s) {
    if (detail::tracing_threads.load(std::memory_order_relaxed) != 0) [[unlikely]]
      s->tell_made();
    return Ref<Storage>::adopt(s);
  };
  if (bytes <= kInlineBytes && device.is_cpu()) {
    char* block = static_cast<char*>(pool_allocate(64 + kInlineBytes));
    return told(new (block) Storage(device, block + 64, bytes, nullptr, nullptr));
  }
  // a block outlives the backend of a recording, so it belongs to the CPU's
  Backend& from = device.is_cpu() ? kernels::cpu_backend() : backend(device);
  void* data = from.allocate(bytes);
  void* header;
  try {
    header = pool_allocate(sizeof(Storage));
  } catch (...) {
    from.deallocate(data, bytes);
    throw;
  }
  return told(new (header) Storage(device, data, bytes, nullptr, &from));
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

Ref<Storage> Storage::borrow(Device device, void* data, size_t bytes, void (*release)(void*), void* context,
                             bool read_only) {
  static constexpr auto keep = [](void*) {};
  auto s = Ref<Storage>::adopt(new (pool_allocate(sizeof(Storage)))
                                   Storage(device, data, bytes, release ? release : +keep, context));
  s->read_only_ = read_only;
  return s;
}

Ref<Storage> Storage::take_over(Device device, void* data, size_t bytes, void (*release)(void*),
                                void* context) {
  auto s = borrow(device, data, bytes, release, context);
  s->taken_over_ = true;
  return s;
}

Ref<Storage> Storage::part(const Ref<Storage>& whole, size_t offset, size_t bytes) {
  if (offset > whole->bytes() || bytes > whole->bytes() - offset)
    throw ValueError(str("part: ", bytes, " bytes at ", offset, " of memory of ", whole->bytes(), " bytes"));
  void* const header = pool_allocate(sizeof(Storage));
  Storage* const held = Ref<Storage>(whole).detach();
  return Ref<Storage>::adopt(new (header) Storage(held->device(), static_cast<char*>(held->data()) + offset,
                                                  bytes, &end_part, held));
}

void* Storage::allocation() const {
  if (ParameterLock* const mine = lock()) {
    const std::lock_guard guard(mine->mutex);
    return mine->block->allocation();
  }
  return whole() ? whole()->data() : data();
}

void Storage::end_part(void* whole) { Ref<Storage>::adopt(static_cast<Storage*>(whole)); }
void Storage::pinned(void*) {}

void Storage::share() {
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  if (lock()) return;
  auto fresh = std::make_unique<ParameterLock>();
  // inline bytes live only as long as this header, but a block may outlive it
  if (is_inline()) {
    fresh->block = allocate(device_, bytes_);
    std::memcpy(fresh->block->data(), data(), bytes_);
    data_.store(fresh->block->data(), std::memory_order_release);
  } else {
    fresh->block = Ref<Storage>::adopt(new (pool_allocate(sizeof(Storage)))
                                           Storage(device_, data(), bytes_, release_, context_));
  }
  mark(kExposed);  // a step does not count in the version of the block
  fresh->block->mark(kExposed);
  forget_packs();
  lock_.store(fresh.release(), std::memory_order_release);
}

bool Storage::is_held() const { return saves() != 0 || lock()->block->saves() != 0; }

void Storage::replace_block(Ref<Storage> fresh) {
  ParameterLock& mine = *lock();
  fresh->mark(kExposed);
  if (saves() == 0) mine.earlier.clear();
  else mine.earlier.push_back(mine.block);
  data_.store(fresh->data(), std::memory_order_release);
  mine.block.swap(fresh);
  count_write();
}

void Storage::bump_block() {
  const std::lock_guard guard(lock()->mutex);
  lock()->block->count_write();
}

const char* Storage::read_only_reason() const {
  return has(kFrozen)
             ? "is frozen"
             : "lies in memory that from_blob was given as const, or is the dense copy of a row-wise "
               "gradient (row_grad() has its values), or the rows of one";
}

bool Storage::may_keep_packs() const {
  return device_.is_cpu() && !lock() && !has(kMadeInTrace) && (has(kFrozen) || (!release_ && !has(kExposed)));
}

void Storage::expose_now() {
  if (has(kFrozen))
    throw ValueError(
        "raw: the tensor is frozen; const_raw() and data<const T>() read it, and clone() is a copy that "
        "takes writes");
  mark(kExposed);
  forget_packs();
}

void Storage::freeze() {
  if (lock())
    throw ValueError("freeze: the parameter is marked concurrent, and optimizer steps replace its memory");
  mark(kFrozen);
}

void Storage::watch_packs(const void* operand) {
  if (!may_keep_packs() || (has(kWatched) && kernels::packs::may_be_watched(operand))) return;
  kernels::packs::watch(operand, version_);
  mark(kWatched);
  if (!may_keep_packs()) end_packs();  // another thread took the address meanwhile
}

void Storage::end_packs() noexcept {
  marks_.fetch_and(static_cast<uint8_t>(~kWatched), std::memory_order_relaxed);
  kernels::packs::forget(version_);
}

void Storage::pause_packs() const { kernels::packs::pause(version_); }
void Storage::resume_packs() const noexcept { kernels::packs::resume(version_); }

void Storage::destroy(Storage* s) noexcept {
  if (s->marks_.load(std::memory_order_relaxed) != 0) [[unlikely]]
    s->tell_end();
  s->end_arrears();
  void* const data = s->data_.load(std::memory_order_relaxed);  // data() would report a use to a recording
  const bool with_data = s->is_inline();
  if (with_data && !s->lock()) [[likely]] {
    s->~Storage();
    return pool_free(s, 64 + kInlineBytes);
  }
  if (ParameterLock* const lock = s->lock()) delete lock;  // the block owns the memory
  else if (s->is_pinned()) static_cast<Accelerator*>(s->context_)->deallocate_pinned(data);
  else if (s->release_) s->release_(s->context_);
  else static_cast<Backend*>(s->context_)->deallocate(data, s->bytes_);
  s->~Storage();
  pool_free(s, with_data ? 64 + kInlineBytes : sizeof(Storage));
}

}  // namespace weft
