// Copies between devices and pinned host memory on side streams; staging.h describes their order.
// CopyContinuations, which continues a message after its copies, is here too.
#include <weft/distributed/wire/inner/staging.h>

#include <weft/distributed/wire/inner/streams.h>

namespace weft::rpc {

namespace {

/// The side streams of a device, made at the first use and never destroyed, since blocks in the allocator
/// refer to them.
void* stream_of(Accelerator& device, bool down) {
  static Mutex mutex;
  static auto* const all = new std::map<std::pair<Accelerator*, bool>, void*>;
  MutexLock lock(mutex);
  void*& stream = (*all)[{&device, down}];
  if (!stream) {
    stream = device.new_stream(true);
    register_stream_states();
  }
  return stream;
}

Release keep_storage(Ref<Storage> storage) {
  return Release([](void* s) { Ref<Storage>::adopt(static_cast<Storage*>(s)).reset(); }, storage.detach());
}

}  // namespace

Staging::~Staging() {
  for (const Part& p : parts_) {
    try {
      if (done_) continue;
      if (p.event) p.device->synchronize_event(p.event);
      else p.device->synchronize_stream(p.stream);
    } catch (const Error&) {  // a failed copy is no longer running
    }
  }
  drop();
  for (const Part& p : parts_)
    if (p.event) p.device->delete_event(p.event);
}

void* Staging::side_stream(Accelerator& device, bool down) {
  for (const Part& p : parts_)
    if (p.device == &device) return p.stream;
  void* const stream = stream_of(device, down);
  if (parts_.empty()) lane_ = device.device().index * 2 + down;
  parts_.push_back({&device, stream, nullptr});
  if (down) {
    void* const event = device.new_event(false);
    device.record_event(event, device.current_stream());
    device.wait_event(stream, event);
    device.delete_event(event);
  }
  return stream;
}

std::shared_ptr<void> Staging::download(const Ref<Storage>& storage, const void* data, int64_t bytes) {
  Accelerator& device = accelerator(storage->device());
  std::shared_ptr<void> host = pinned_memory(storage->device().index, bytes);
  if (!host)
    host = std::shared_ptr<void>(::operator new(static_cast<size_t>(bytes)),
                                 [](void* p) { ::operator delete(p); });
  Context context{.stream = side_stream(device, true)};
  {
    MutexLock lock(mutex_);
    storage->add_save();
    saved_.push_back(storage);
  }
  device.copy_async(context, host.get(), data, static_cast<size_t>(bytes));
  return host;
}

Ref<Storage> Staging::upload(Device where, const void* data, int64_t bytes, Release keep) {
  Accelerator& device = accelerator(where);
  Context context{.stream = side_stream(device, false)};
  Ref<Storage> storage;
  {
    const StreamScope scope({{&device, context.stream}});
    storage = Storage::allocate(where, static_cast<size_t>(bytes));
  }
  {
    MutexLock lock(mutex_);
    kept_.push_back(std::move(keep));
    // the copy still writes to the storage, even if the tensor is released meanwhile
    kept_.push_back(keep_storage(storage));
  }
  device.copy_async(context, storage->data(), data, static_cast<size_t>(bytes));
  return storage;
}

Ref<Storage> Staging::borrow(Device where, const SharedBlock& block, int64_t bytes) {
  struct Opened {
    Accelerator* device;
    void* memory;
  };
  Accelerator& device = accelerator(where);
  void* const memory = device.open_shared(block);
  Release close(
      [](void* o) {
        const std::unique_ptr<Opened> opened(static_cast<Opened*>(o));
        opened->device->close_shared(opened->memory);
      },
      new Opened{&device, memory});
  return upload(where, memory, bytes, std::move(close));
}

void Staging::close() {
  for (Part& p : parts_) {
    p.event = p.device->new_event(false);
    p.device->record_event(p.event, p.stream);
  }
  if (parts_.empty()) drop();
}

bool Staging::ready() noexcept {
  if (done_) return true;
  try {
    for (const Part& p : parts_)
      if (!p.device->event_done(p.event)) return false;
  } catch (...) {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    return false;
  }
  {
    MutexLock lock(mutex_);
    if (failure_) return false;
  }
  drop();
  return true;
}

void Staging::wait() {
  if (done_) return;
  for (const Part& p : parts_) p.device->synchronize_event(p.event);
  {
    MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  drop();
}

void Staging::drop() noexcept {
  std::vector<Ref<Storage>> saved;
  std::vector<Release> kept;
  {
    MutexLock lock(mutex_);
    if (done_.exchange(true)) return;
    saved.swap(saved_);
    kept.swap(kept_);
  }
  for (const Ref<Storage>& s : saved) s->drop_save();
}

std::shared_ptr<void> pinned_memory(int device, int64_t bytes) {
  Accelerator* const from = open_accelerator(device);
  if (!from) return nullptr;
  try {
    return {from->allocate_pinned(static_cast<size_t>(bytes)),
            [from](void* p) { from->deallocate_pinned(p); }};
  } catch (const OutOfMemoryError&) {  // pageable memory works too, more slowly
    return nullptr;
  }
}

// ---- CopyContinuations

void CopyContinuations::run_after(std::shared_ptr<Staging> staging,
                                  std::function<void(std::exception_ptr)> then) {
  const int lane = staging->lane();
  bool fresh = false;
  {
    MutexLock lock(mutex_);
    const auto [at, made] = lanes_.try_emplace(lane);
    at->second.push_back({std::move(staging), std::move(then)});
    fresh = made;
  }
  if (fresh) runtime_->post([self = shared_from_this(), lane] { self->drain(lane); });
}

void CopyContinuations::drain(int lane) {
  for (;;) {
    Item item;
    {
      MutexLock lock(mutex_);
      const auto found = lanes_.find(lane);
      if (found->second.empty()) {
        lanes_.erase(found);
        return;
      }
      item = std::move(found->second.front());
      found->second.pop_front();
    }
    std::exception_ptr error;
    try {
      item.staging->wait();
    } catch (...) {
      error = std::current_exception();
    }
    item.then(std::move(error));
  }
}

}  // namespace weft::rpc
