// The receiving side of shared memory: the checks of a passed file, and blocks over its memory. The seals
// matter most: without them the other end could cut the file, and the next access would end this process
// (SIGBUS). A block keeps the mapping, not the link, so it outlives the link and the other process.
#include <weft/distributed/transport/inner/known_segments.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include <weft/distributed/transport/inner/frame.h>

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

[[noreturn]] void refuse_shared() { throw WireError("wire: shared memory on a connection that has none"); }

}  // namespace

struct KnownSegments::Held {
  explicit Held(std::shared_ptr<Mapping> its_mapping) : mapping(std::move(its_mapping)) {}
  const std::shared_ptr<Mapping> mapping;
  const pid_t process = getpid();
  std::atomic<bool> held{false};  // a block is over it
};

void KnownSegments::add(uint32_t number, std::optional<File> file) {
  if (!file) throw WireError(str("wire: segment ", number, " came without its file"));
  if (known_.count(number) != 0) throw WireError(str("wire: segment ", number, " came twice"));
  if (known_.size() >= kMostSegments)
    throw WireError(str("wire: more than ", kMostSegments, " segments of one connection"));
  std::shared_ptr<Held> held;
  if (file->get() >= 0) {
    const size_t size = checked_size(*file);
    if (static_cast<int64_t>(size) > kMostSegmentBytes - bytes_)
      throw WireError(str("wire: segments of more than ", kMostSegmentBytes, " bytes of one connection"));
    if (auto mapping = Mapping::of(*file, size, false)) {
      held = std::make_shared<Held>(std::move(mapping));
      bytes_ += static_cast<int64_t>(size);
    } else if (errno != ENOMEM && errno != EAGAIN) {  // EAGAIN: over the limit of locked memory
      throw WireError(str("wire: segment ", number, " cannot be written to"));
    }
  }
  known_.emplace(number, std::move(held));
}

void KnownSegments::forget(uint32_t number) {
  const auto found = known_.find(number);
  if (found == known_.end()) throw WireError(str("wire: the end of the unknown segment ", number));
  if (found->second) bytes_ -= static_cast<int64_t>(found->second->mapping->bytes());
  known_.erase(found);
}

Block KnownSegments::borrow(uint32_t number, int64_t bytes) {
  const auto found = known_.find(number);
  if (found == known_.end()) throw WireError(str("wire: a payload in the unknown segment ", number));
  const std::shared_ptr<Held>& held = found->second;
  if (!held) throw OutOfMemoryError(str("no memory or file for a shared payload of ", bytes, " bytes"));
  if (bytes <= 0 || static_cast<uint64_t>(bytes) > held->mapping->room())
    throw WireError(str("wire: a payload of ", bytes, " bytes in a segment of ", held->mapping->room()));
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

void DecoderSink::on_segment(RecordType, uint32_t) { refuse_shared(); }
Block DecoderSink::borrow(uint32_t, int64_t) { refuse_shared(); }

}  // namespace weft::rpc::inner
