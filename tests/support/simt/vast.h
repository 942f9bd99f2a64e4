// Tensors of more elements than memory has room for, for launches of which only some blocks run
// (Settings::chosen). Their addresses are reserved, and touched pages alone take memory. As many addresses
// before and behind belong to them as an index of 32 bits can reach.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <weft/kernels/inner/convert.h>
#include <weft/kernels/view.h>

namespace weft::cuda::simt {

class Vast {
 public:
  /// kNumbers: numbers from 1 to 120 to be read, in a period that is no power of two. An element is therefore
  /// not that of the same index in 32 bits. kZeros: memory to be written.
  enum Content { kNumbers, kZeros };
  Vast(DType dtype, const Shape& sizes, Content content, const Shape& strides = {})
      : view_{nullptr, dtype, sizes, strides.empty() ? contiguous_strides(sizes) : strides} {
    reach_ = 1;
    for (int d = 0; d < sizes.size(); ++d) reach_ += (sizes[d] - 1) * view_.strides[d];
    margin_ = pages((int64_t{1} << 31) * width());
    bytes_ = 2 * margin_ + pages(reach_ * width());
    begin_ = map(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    madvise(begin_, static_cast<size_t>(bytes_), MADV_NOHUGEPAGE);  // a page is written for itself
    view_.data = begin_ + margin_;
    const int64_t end = bytes_ - 2 * margin_;
    for (int64_t at = 0; content == kNumbers && at < end; at += kPeriod)
      map(begin_ + margin_ + at, std::min(kPeriod, end - at), PROT_READ, MAP_SHARED | MAP_FIXED,
          numbers(dtype));
  }
  ~Vast() { munmap(begin_, static_cast<size_t>(bytes_)); }
  Vast(const Vast&) = delete;

  /// Whether this machine gives a process so many addresses, and tells which pages were touched.
  static bool possible() {
    constexpr size_t bytes = size_t{1} << 38;
    void* const p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    unsigned char page = 1;
    const bool told = mincore(p, kPage, &page) == 0 && (page & 1) == 0;
    munmap(p, bytes);
    return told;
  }

  View view() const { return view_; }
  /// Elements of the memory, from the first to the last of the tensor.
  int64_t reach() const { return reach_; }
  /// `sizes` elements of the memory from `first` on.
  View part(int64_t first, const Shape& sizes, const Shape& strides = {}) const {
    return {view_.as<char>() + first * width(), view_.dtype, sizes,
            strides.empty() ? contiguous_strides(sizes) : strides};
  }

  struct Range {
    int64_t begin, end;
  };
  /// The elements in touched pages, also before and behind the tensor. A read touches a page, too.
  std::vector<Range> touched() const {
    std::vector<unsigned char> resident(static_cast<size_t>(bytes_ / kPage));
    if (mincore(begin_, static_cast<size_t>(bytes_), resident.data()) != 0)
      throw Error("simt: the pages of a vast tensor are not known");
    const unsigned char *const begin = resident.data(), *const end = begin + resident.size();
    std::vector<Range> ranges;
    for (const unsigned char* at = begin;;) {
      const void* const found = std::memchr(at, 1, static_cast<size_t>(end - at));
      if (!found) return ranges;
      const auto* const from = static_cast<const unsigned char*>(found);
      for (at = from; at < end && *at != 0;) ++at;
      ranges.push_back({element(from - begin), element(at - begin)});
    }
  }
  static constexpr int64_t kPage = 4096;

 private:
  static constexpr int64_t kPeriod = int64_t{3} << 22;  // bytes

  int64_t width() const { return size_of(view_.dtype); }
  int64_t element(int64_t page) const { return (page * kPage - margin_) / width(); }
  static int64_t pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  static char* map(char* at, int64_t bytes, int rights, int flags, int file) {
    void* const p = mmap(at, static_cast<size_t>(bytes), rights, flags | MAP_NORESERVE, file, 0);
    if (p == MAP_FAILED) throw Error("simt: no addresses for a vast tensor");
    return static_cast<char*>(p);
  }
  /// A file with one period of numbers.
  static int numbers(DType dtype) {
    static std::array<int, kDTypeCount> files{};
    int& file = files[static_cast<size_t>(dtype)];
    if (file > 0) return file;
    file = memfd_create("numbers", MFD_CLOEXEC);
    if (file <= 0 || ftruncate(file, kPeriod) != 0) throw Error("simt: no file for numbers");
    char* const p = map(nullptr, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED, file);
    dispatch(dtype, [&]<class T>(TypeTag<T>) {
      for (uint64_t k = 0; k < static_cast<uint64_t>(kPeriod) / sizeof(T); ++k)
        reinterpret_cast<T*>(p)[k] =
            kernels::convert<T>(static_cast<float>(1 + (k * 2654435761u >> 20) % 120));
    });
    munmap(p, static_cast<size_t>(kPeriod));
    return file;
  }

  View view_;
  int64_t reach_ = 0, margin_ = 0, bytes_ = 0;
  char* begin_ = nullptr;
};

}  // namespace weft::cuda::simt
