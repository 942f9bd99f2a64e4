// CUDA IPC between workers of one host; lending.h describes the protocol. wire_format.cpp calls lend() for
// outgoing tensors; rpc/devices.cpp agrees on the pairs of devices and returns loans.
#include <weft/distributed/wire/inner/lending.h>

#include <cstring>

#include <weft/tensor/factories.h>

namespace weft::rpc {

Lending::~Lending() {
  for (const auto& [number, loan] : standing_) drop(loan);
}

std::vector<Lending::Probe> Lending::offer(Runtime& runtime) {
  std::vector<Probe> out;
  for (int i = 0, n = open_accelerators(); i < n; ++i) {
    Accelerator* const device = open_accelerator(i);
    if (!device) continue;
    Probe probe{device->device(), {}, runtime.random()};
    const Tensor block = empty({8}, {.dtype = kUInt8, .device = probe.device});
    Context context;
    device->copy_from_host(context, &probe.contents, block.address(), sizeof probe.contents);
    try {
      probe.block = device->share(block.address());
    } catch (const Error&) {  // the device's memory cannot be shared
      continue;
    }
    MutexLock lock(mutex_);
    offered_.push_back(block);
    out.push_back(probe);
  }
  return out;
}

std::vector<std::pair<Device, Device>> Lending::try_out(const std::vector<Probe>& probes) {
  std::vector<std::pair<Device, Device>> out;
  for (const Probe& probe : probes)
    for (int i = 0, n = open_accelerators(); i < n; ++i) {
      Accelerator* const device = open_accelerator(i);
      if (!device) continue;
      try {
        void* const p = device->open_shared(probe.block);
        uint64_t seen = 0;
        Context context;
        try {
          device->copy_to_host(context, p, &seen, sizeof seen);
        } catch (const Error&) {  // not reachable from this device
        }
        device->close_shared(p);
        if (seen == probe.contents) out.emplace_back(probe.device, device->device());
      } catch (const Error&) {  // a block of another host, or of this process
      }
    }
  return out;
}

void Lending::agree(WorkerId to, const std::vector<std::pair<Device, Device>>& pairs) {
  MutexLock lock(mutex_);
  for (const auto& [mine, theirs] : pairs) pairs_.emplace(to, mine.index, theirs.index);
}

void Lending::end_offer() {
  std::vector<Tensor> gone;
  MutexLock lock(mutex_);
  gone.swap(offered_);
  lock.unlock();
}

std::shared_ptr<const Loan> Lending::lend(WorkerId to, const Place& place, const Tensor& tensor,
                                          int64_t bytes) {
  if (bytes < kLeast || !place.source.is_cuda() || !place.target.is_cuda()) return nullptr;
  auto loan = std::make_shared<Loan>();
  {
    MutexLock lock(mutex_);
    if (pairs_.count({to, place.source.index, place.target.index}) == 0) return nullptr;
    loan->number = next_++;
  }
  const Ref<Storage>& storage = tensor.body().storage;
  try {
    loan->block = accelerator(place.source).share(storage->data());
  } catch (const Error&) {  // for example, memory of another library: the message contains the bytes
    return nullptr;
  }
  loan->block.offset += static_cast<char*>(tensor.address()) - static_cast<char*>(storage->data());
  storage->add_save();
  ++lent_;
  MutexLock lock(mutex_);
  standing_.emplace(loan->number, Standing{to, tensor.detach()});
  return loan;
}

void Lending::drop(const Standing& loan) { loan.tensor.body().storage->drop_save(); }

bool Lending::take_back(WorkerId to, const std::vector<uint64_t>& numbers) {
  bool all = true;
  std::vector<Standing> ended;
  {
    MutexLock lock(mutex_);
    for (const uint64_t number : numbers) {
      const auto found = standing_.find(number);
      if (found == standing_.end() || found->second.to != to) {
        all = false;
        continue;
      }
      ended.push_back(std::move(found->second));
      standing_.erase(found);
    }
  }
  for (const Standing& loan : ended) drop(loan);
  return all;
}

void Lending::end(uint64_t number) {
  Standing ended;
  {
    MutexLock lock(mutex_);
    const auto found = standing_.find(number);
    if (found == standing_.end()) return;
    ended = std::move(found->second);
    standing_.erase(found);
  }
  drop(ended);
}

void Lending::peer_lost(WorkerId peer) {
  std::vector<uint64_t> theirs;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, loan] : standing_)
      if (loan.to == peer) theirs.push_back(number);
  }
  for (const uint64_t number : theirs) end(number);
}

int64_t Lending::standing() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(standing_.size());
}

}  // namespace weft::rpc
