// The receiving side of shared memory: the checks of a passed file, and blocks over its memory. The seals
// matter most: without them the other end could cut the file, and the next access would end this process
// (SIGBUS). A block keeps the mapping, not the link, so it outlives the link and the other process.
#include <weft/distributed/transport/inner/known_segments.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include <weft/distributed/transport/inner/mapping.h>

namespace weft::rpc::inner {
namespace {

constexpr long kTmpfs = 0x01021994;  // the file system of a memfd; that of huge pages may lack pages
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

/// The bytes of a file of the right kind. Throws: WireError.
size_t checked_size(const File& file) {
  struct stat about {};
  struct statfs system {};
  if (fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) || fstatfs(file.get(), &system) != 0 ||
      system.f_type != kTmpfs)
    throw WireError("wire: the file of a segment is no memory file");
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    throw WireError("wire: the file of a segment is not sealed, its size may change");
  if (about.st_size <= static_cast<off_t>(kSegmentHead) || about.st_size > kMostSegmentBytes)
    throw WireError(str("wire: a segment of ", about.st_size, " bytes"));
  return static_cast<size_t>(about.st_size);
}

}  // namespace

struct KnownSegments::Held {
  File file{};  // until it is mapped; none: this process had no number free for it
  size_t bytes = 0;
  std::shared_ptr<Mapping> mapping{};
  int error = EMFILE;  // why there is no mapping
  const pid_t process = getpid();
  std::atomic<bool> held{false};  // a block is over it

  bool map() {
    if (mapping == nullptr && file.get() >= 0) {
      mapping = Mapping::of(file, bytes, false);
      if (mapping == nullptr) error = errno;
      else file = File();
    }
    return mapping != nullptr;
  }
  /// A payload that cannot be read here: the sender may use the segment again.
  [[noreturn]] void refuse(int64_t payload) const {
    const uint32_t free = 0;
    [[maybe_unused]] const ssize_t written = pwrite(file.get(), &free, sizeof free, 0);
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    const std::string why = error == EMFILE ? str("all ", files.rlim_cur, " files of RLIMIT_NOFILE are open")
                                            : str("mmap: ", std::strerror(error),
                                                  " (RLIMIT_AS, RLIMIT_MEMLOCK, vm.max_map_count)");
    throw OutOfMemoryError(str("no memory for a payload of ", payload, " bytes in shared memory: ", why));
  }
};

void KnownSegments::add(uint32_t number, std::optional<File> file) {
  if (!file) throw WireError(str("wire: segment ", number, " came without its file"));
  const auto found = known_.find(number);
  if (found != known_.end() && found->second->bytes > 0) return;
  if (found == known_.end() && known_.size() >= kMostSegments)
    throw WireError(str("wire: more than ", kMostSegments, " segments of one connection"));
  auto held = std::make_shared<Held>();
  if (file->get() >= 0) {
    held->bytes = checked_size(*file);
    if (static_cast<int64_t>(held->bytes) > kMostSegmentBytes - bytes_)
      throw WireError(str("wire: segments of more than ", kMostSegmentBytes, " bytes of one connection"));
    held->file = std::move(*file);
    if (!held->map() && held->error != ENOMEM && held->error != EAGAIN)  // EAGAIN: too much memory is locked
      throw WireError(str("wire: segment ", number, " cannot be written to"));
    bytes_ += static_cast<int64_t>(held->bytes);
  }
  known_.insert_or_assign(number, std::move(held));
}

void KnownSegments::forget(uint32_t number) {
  const auto found = known_.find(number);
  if (found == known_.end()) throw WireError(str("wire: the end of the unknown segment ", number));
  bytes_ -= static_cast<int64_t>(found->second->bytes);
  known_.erase(found);
}

Block KnownSegments::borrow(uint32_t number, int64_t bytes) {
  const auto found = known_.find(number);
  if (found == known_.end()) throw WireError(str("wire: a payload in the unknown segment ", number));
  const std::shared_ptr<Held>& held = found->second;
  const size_t room = held->bytes > 0 ? held->bytes - kSegmentHead : SIZE_MAX;  // unknown without its file
  if (bytes <= 0 || static_cast<uint64_t>(bytes) > room)
    throw WireError(str("wire: a payload of ", bytes, " bytes in a segment of ", room));
  if (!held->map()) held->refuse(bytes);
  auto own = std::make_unique<std::shared_ptr<Held>>(held);
  if (held->held.exchange(true))
    throw WireError(str("wire: a second payload in segment ", number, ", whose first one is held here"));
  Block block;
  block.data = held->mapping->payload();
  block.bytes = bytes;
  block.shared = true;
  block.release = Release(
      [](void* p) {
        const std::unique_ptr<std::shared_ptr<Held>> mine(static_cast<std::shared_ptr<Held>*>(p));
        // After a fork() both processes have the block, and this one's end gives nothing back.
        if (getpid() != (*mine)->process) return;
        (*mine)->held.store(false);  // before the sender may use it again
        (*mine)->mapping->set_word(0);
      },
      own.release());
  return block;
}

}  // namespace weft::rpc::inner
