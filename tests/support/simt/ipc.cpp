// The calls of kernels/cuda/host/runtime.h that share memory between processes (CUDA IPC). A handle names the
// file from which a process maps its device memory, by the process's folder in /proc. It also has the place
// of the block. A ledger after the memory lists the blocks that may be opened. As in CUDA, a block that is
// opened again has the same address. A process cannot open its own block (unless Settings::shares_memory
// allows it). Freed blocks and ended processes are errors here.
#include <weft/kernels/cuda/host/runtime.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <utility>

#include <weft/kernels/error.h>
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft::cuda {

namespace simt {
namespace {

constexpr uint64_t kSign = 0x57454654'49504331;

struct Handle {
  uint64_t sign, file_name, serial;  ///< file_name: a random number; serial: number of the export
  uint64_t offset, bytes;
  int32_t process, file;
};
static_assert(sizeof(Handle) <= std::tuple_size_v<runtime::IpcHandle>);

struct Opened {
  std::pair<uint64_t, uint64_t> name;
  unsigned char* pages;
  size_t bytes;  ///< size of the mapped pages
  int users = 1;
};

struct Shares {
  uint64_t file_name = 0, next = 1;
  std::map<const void*, uint64_t> exported;  // block -> serial
  std::map<unsigned char*, Opened> opened;   // by the block's address in this process
  int64_t opens = 0;
};
/// Guarded by DeviceAccess.
Shares& shares() {
  static auto* const s = new Shares;
  return *s;
}

off_t ledger_at(const Backing& memory, uint64_t offset) {
  return static_cast<off_t>(memory.bytes + sizeof(uint64_t) * (1 + offset / kBlockAlign));
}
void write_number(int file, uint64_t number, off_t at) {
  if (pwrite(file, &number, sizeof number, at) != sizeof number)
    throw CudaError("cudaIpcGetMemHandle: the ledger of device memory cannot be written");
}
uint64_t read_number(int file, off_t at) {
  uint64_t number = 0;
  return pread(file, &number, sizeof number, at) == sizeof number ? number : 0;
}

/// Closes a descriptor.
struct File {
  int number;
  explicit File(int n) : number(n) {}
  ~File() {
    if (number >= 0) close(number);
  }
  File(const File&) = delete;
};

}  // namespace

bool withdraw(const void* block) {
  const auto found = shares().exported.find(block);
  if (found == shares().exported.end()) return false;
  shares().exported.erase(found);
  const Backing memory = backing();
  if (memory.file >= 0)
    write_number(
        memory.file, 0,
        ledger_at(memory, static_cast<uint64_t>(static_cast<const unsigned char*>(block) - memory.base)));
  return true;
}

bool is_opened_memory(const void* p) {
  const auto* const at = static_cast<const unsigned char*>(p);
  for (const auto& [block, one] : shares().opened)
    if (at >= one.pages && at < one.pages + one.bytes) return true;
  return false;
}

int opened_blocks() {
  const DeviceAccess access;
  return static_cast<int>(shares().opened.size());
}
int64_t opens() {
  const DeviceAccess access;
  return shares().opens;
}

void protect_opened(int rights) {
  for (const auto& [block, one] : shares().opened) mprotect(one.pages, one.bytes, rights);
}

}  // namespace simt

namespace runtime {

using simt::Handle;

IpcHandle export_memory(void* block) {
  const simt::DeviceAccess access;
  const simt::Backing memory = simt::backing();
  simt::Shares& shares = simt::shares();
  const auto bytes = simt::bytes_of_block(block);
  if (!bytes) throw CudaError("cudaIpcGetMemHandle: not a block of device memory (cudaErrorInvalidValue)");
  if (memory.file < 0) throw CudaError("cudaIpcGetMemHandle: a forked process cannot share its memory");
  if (shares.file_name == 0) {
    std::random_device random;
    shares.file_name = (uint64_t{random()} << 32 | random()) | 1;
    simt::write_number(memory.file, shares.file_name, static_cast<off_t>(memory.bytes));
  }
  const auto [found, first] = shares.exported.try_emplace(block, shares.next);
  const auto offset = static_cast<uint64_t>(static_cast<unsigned char*>(block) - memory.base);
  if (first) simt::write_number(memory.file, shares.next++, simt::ledger_at(memory, offset));
  const Handle handle{simt::kSign, shares.file_name, found->second,
                      offset,      *bytes,           static_cast<int32_t>(getpid()),
                      memory.file};
  IpcHandle out{};
  std::memcpy(out.data(), &handle, sizeof handle);
  return out;
}

void* open_memory(const IpcHandle& from) {
  Handle handle;
  std::memcpy(&handle, from.data(), sizeof handle);
  const simt::DeviceAccess access;
  const simt::Backing memory = simt::backing();
  if (handle.sign != simt::kSign || handle.offset > memory.bytes ||
      handle.bytes > memory.bytes - handle.offset)
    throw CudaError("cudaIpcOpenMemHandle: no handle of device memory (cudaErrorInvalidValue)");
  if (handle.process == getpid() && !simt::settings().shares_memory)
    throw CudaError("cudaIpcOpenMemHandle: a handle of this process's own memory");
  const simt::File file(open(str("/proc/", handle.process, "/fd/", handle.file).c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (file.number < 0 || fstat(file.number, &status) != 0 ||
      status.st_size != static_cast<off_t>(memory.bytes + simt::ledger_bytes(memory.bytes)) ||
      simt::read_number(file.number, static_cast<off_t>(memory.bytes)) != handle.file_name)
    throw CudaError(str("cudaIpcOpenMemHandle: process ", handle.process,
                        ", whose memory it is, has ended or is not of this host"));
  if (simt::read_number(file.number, simt::ledger_at(memory, handle.offset)) != handle.serial)
    throw CudaError(str("cudaIpcOpenMemHandle: process ", handle.process,
                        " has freed the block (cudaErrorInvalidValue)"));
  ++simt::shares().opens;
  const std::pair<uint64_t, uint64_t> name(handle.file_name, handle.serial);
  for (auto& [block, one] : simt::shares().opened)
    if (one.name == name) return ++one.users, block;
  const uint64_t begin = handle.offset & ~uint64_t{4095}, before = handle.offset - begin;
  const size_t bytes = (before + handle.bytes + 4095) / 4096 * 4096;
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, static_cast<off_t>(begin));
  if (pages == MAP_FAILED)
    throw CudaError("cudaIpcOpenMemHandle: no addresses are left (cudaErrorMapBufferObjectFailed)");
  auto* const block = static_cast<unsigned char*>(pages) + before;
  simt::close_freed(block - before, before);
  simt::close_freed(block + handle.bytes, bytes - before - handle.bytes);
  simt::shares().opened.emplace(block, simt::Opened{name, block - before, bytes});
  return block;
}

void close_memory(void* block) {
  const simt::DeviceAccess access;
  const auto found = simt::shares().opened.find(static_cast<unsigned char*>(block));
  if (found == simt::shares().opened.end())
    throw CudaError("cudaIpcCloseMemHandle: nothing is open there (cudaErrorInvalidValue)");
  if (--found->second.users > 0) return;
  const simt::Opened gone = found->second;
  simt::shares().opened.erase(found);
  simt::unguard(gone.pages, gone.bytes);
  munmap(gone.pages, gone.bytes);
}

}  // namespace runtime

}  // namespace weft::cuda
