// .npz: a zip archive. Members are written stored, and read stored or deflated. Sizes and offsets at or above 4 GiB go into zip64 fields, in
// both directions.
#include <weft/tensor/npy.h>

#include <array>
#include <cstring>
#include <optional>
#include <unordered_set>

#include <weft/tensor/file_io.h>
#include <weft/tensor/inflate.h>
#include <weft/tensor/npy_format.h>

namespace weft {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint32_t kFull32 = 0xFFFFFFFFu;

class Crc32 {
 public:
  void add(const void* data, uint64_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    uint32_t c = value_;
    for (uint64_t i = 0; i < bytes; ++i) c = table()[(c ^ p[i]) & 0xFF] ^ (c >> 8);
    value_ = c;
  }
  uint32_t value() const { return ~value_; }

 private:
  static const std::array<uint32_t, 256>& table() {
    static const std::array<uint32_t, 256> t = [] {
      std::array<uint32_t, 256> made{};
      for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int k = 0; k < 8; ++k) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        made[i] = c;
      }
      return made;
    }();
    return t;
  }
  uint32_t value_ = ~0u;
};

struct Bytes {
  std::string text;
  Bytes& u16(uint64_t v) { return put(v, 2); }
  Bytes& u32(uint64_t v) { return put(v, 4); }
  Bytes& u64(uint64_t v) { return put(v, 8); }
  Bytes& put(uint64_t v, int n) {
    for (int i = 0; i < n; ++i) text += static_cast<char>(v >> (8 * i) & 0xFF);
    return *this;
  }
};

uint64_t get(const unsigned char* p, int n) {
  uint64_t v = 0;
  for (int i = 0; i < n; ++i) v |= static_cast<uint64_t>(p[i]) << (8 * i);
  return v;
}

struct Member {
  std::string name;
  uint32_t crc = 0;
  uint64_t size = 0, offset = 0;
};

uint64_t capped(uint64_t v) { return v >= kFull32 ? kFull32 : v; }

/// Fields common to local and central headers, from "version needed" to "extra length".
void common(Bytes& out, const Member& m, bool wide, size_t extra) {
  out.u16(wide ? 45 : 20)
      .u16(0x800)
      .u16(0)
      .u16(0)
      .u16(0x21)
      .u32(m.crc)
      .u32(capped(m.size))
      .u32(capped(m.size))
      .u16(m.name.size())
      .u16(extra);
}

}  // namespace

void save_npz(const std::string& path, const NamedTensors& tensors) {
  std::unordered_set<std::string> names;
  for (const auto& [name, x] : tensors) {
    if (!x.defined()) throw ValueError(str("save_npz: tensor ", name, " is undefined"));
    if (name.empty() || name.size() > 60000 || !names.insert(name).second)
      throw ValueError(str("save_npz: the name '", name, "' is empty, too long or repeated"));
  }
  detail::FileWriter file("save_npz", path);
  const auto put = [&](const Bytes& b) { file.write(b.text.data(), b.text.size()); };
  std::vector<Member> members;
  for (const auto& [name, x] : tensors) {
    const Tensor host = detail::host_copy(x);
    const std::string header = detail::write_npy_header(x.dtype(), x.sizes());
    const uint64_t bytes = static_cast<uint64_t>(host.numel() * size_of(host.dtype()));
    Crc32 crc;
    crc.add(header.data(), header.size());
    crc.add(host.raw(), bytes);
    Member m{name + ".npy", crc.value(), header.size() + bytes, file.position()};
    Bytes local;
    const bool wide = m.size >= kFull32;
    local.u32(kLocal);
    common(local, m, wide, wide ? 20 : 0);
    local.text += m.name;
    if (wide) local.u16(1).u16(16).u64(m.size).u64(m.size);
    put(local);
    file.write(header.data(), header.size());
    file.write(host.raw(), bytes);
    members.push_back(std::move(m));
  }
  const uint64_t directory = file.position();
  for (const Member& m : members) {
    Bytes extra;
    if (m.size >= kFull32) extra.u64(m.size).u64(m.size);
    if (m.offset >= kFull32) extra.u64(m.offset);
    const bool wide = !extra.text.empty();
    Bytes entry;
    entry.u32(kCentral).u16(wide ? 45 : 20);
    common(entry, m, wide, wide ? extra.text.size() + 4 : 0);
    entry.u16(0).u16(0).u16(0).u32(0).u32(capped(m.offset));
    entry.text += m.name;
    if (wide) entry.u16(1).u16(extra.text.size()).text += extra.text;
    put(entry);
  }
  const uint64_t end = file.position();
  const bool wide = directory >= kFull32 || members.size() >= 0xFFFF;
  Bytes tail;
  if (wide) {
    tail.u32(kEnd64)
        .u64(44)
        .u16(45)
        .u16(45)
        .u32(0)
        .u32(0)
        .u64(members.size())
        .u64(members.size())
        .u64(end - directory)
        .u64(directory);
    tail.u32(kLocator64).u32(0).u64(end).u32(1);
  }
  const uint64_t count = wide ? 0xFFFF : members.size();
  tail.u32(kEnd)
      .u16(0)
      .u16(0)
      .u16(count)
      .u16(count)
      .u32(capped(end - directory))
      .u32(wide ? kFull32 : directory)
      .u16(0);
  put(tail);
  file.commit();
}

NamedTensors load_npz(const std::string& path) {
  detail::FileReader file("load_npz", path);
  const auto bytes_at = [&](uint64_t at, uint64_t n) {
    std::vector<unsigned char> out(n);
    file.seek(at);
    file.read(out.data(), n);
    return out;
  };
  // The end record lies within the last 22 bytes plus a comment of at most 65535.
  const uint64_t tail_size = file.size() < 22 + 65535 ? file.size() : 22 + 65535;
  const std::vector<unsigned char> tail = bytes_at(file.size() - tail_size, tail_size);
  int64_t found = -1;
  for (int64_t i = static_cast<int64_t>(tail.size()) - 22; i >= 0 && found < 0; --i)
    if (get(&tail[static_cast<size_t>(i)], 4) == kEnd) found = i;
  if (found < 0) file.fail("no zip directory; this is no .npz file");
  const unsigned char* end = &tail[static_cast<size_t>(found)];
  const uint64_t end_at = file.size() - tail_size + static_cast<uint64_t>(found);
  uint64_t count = get(end + 10, 2), directory = get(end + 16, 4);
  if (count == 0xFFFF || directory == kFull32) {
    if (end_at < 20) file.fail("the zip64 locator is missing");
    const auto locator = bytes_at(end_at - 20, 20);
    if (get(&locator[0], 4) != kLocator64) file.fail("the zip64 locator is missing");
    const auto wide = bytes_at(get(&locator[8], 8), 56);
    if (get(&wide[0], 4) != kEnd64) file.fail("the zip64 directory is missing");
    count = get(&wide[32], 8);
    directory = get(&wide[48], 8);
  }
  NamedTensors out;
  uint64_t at = directory;
  for (uint64_t k = 0; k < count; ++k) {
    const auto entry = bytes_at(at, 46);
    if (get(&entry[0], 4) != kCentral) file.fail(str("no directory entry at byte ", at));
    const uint64_t method = get(&entry[10], 2), name_length = get(&entry[28], 2),
                   extra_length = get(&entry[30], 2), comment = get(&entry[32], 2);
    uint64_t size = get(&entry[24], 4), packed = get(&entry[20], 4), offset = get(&entry[42], 4);
    const uint32_t crc_wanted = static_cast<uint32_t>(get(&entry[16], 4));
    const auto text = bytes_at(at + 46, name_length + extra_length);
    std::string name(text.begin(), text.begin() + static_cast<int64_t>(name_length));
    for (uint64_t e = name_length; e + 4 <= text.size();) {
      const uint64_t id = get(&text[e], 2), length = get(&text[e + 2], 2);
      if (e + 4 + length > text.size()) break;
      uint64_t p = e + 4;
      const uint64_t stop = p + length;
      if (id == 1)
        for (uint64_t* field : {&size, &packed, &offset})
          if (*field == kFull32 && p + 8 <= stop) {
            *field = get(&text[p], 8);
            p += 8;
          }
      e = stop;
    }
    at += 46 + name_length + extra_length + comment;
    if (get(&entry[8], 2) & 1) file.fail(str("member ", name, " is encrypted"));
    if (method != 0 && method != 8)
      file.fail(str("member ", name, " is compressed by method ", method,
                    "; stored and deflated members are read"));
    if (method == 8 && size / detail::Inflater::kMaxRatio > packed)
      file.fail(str("member ", name, " claims to unpack from ", packed, " to ", size, " bytes"));
    if (method == 0 && size != packed) file.fail(str("member ", name, " is stored but its two sizes differ"));
    const auto local = bytes_at(offset, 30);
    if (get(&local[0], 4) != kLocal) file.fail(str("member ", name, ": no header at byte ", offset));
    const uint64_t begin = offset + 30 + get(&local[26], 2) + get(&local[28], 2);
    if (begin > file.size() || packed > file.size() - begin)
      file.fail(str("member ", name, " reaches past the end of the file"));
    try {
      file.seek(begin);
      std::optional<detail::Inflater> inflater;
      if (method == 8) inflater.emplace(file, packed);
      Crc32 crc;
      const auto read = [&](void* to, uint64_t n) {
        if (inflater) inflater->read(to, n);
        else file.read(to, n);
        crc.add(to, n);
      };
      std::vector<unsigned char> head(size < 12 ? size : 12);
      read(head.data(), head.size());
      const uint64_t first = head.size();
      uint64_t prefix = 0, length = 0;
      detail::read_npy_prefix(head.data(), first, prefix, length);
      if (length > size - prefix || prefix + length < first) throw IoError("the .npy header is cut off");
      head.resize(prefix + length);
      read(head.data() + first, head.size() - first);
      const detail::NpyHeader header = detail::read_npy_dictionary(
          std::string_view(reinterpret_cast<const char*>(head.data()) + prefix, length));
      if (detail::npy_data_bytes(header) != size - prefix - length)
        throw IoError(str("shape ", header.sizes, " does not fit ", size - prefix - length, " bytes"));
      Tensor x = detail::read_npy_data(header, read);
      if (inflater) inflater->finish();
      if (crc.value() != crc_wanted) throw IoError("the checksum is wrong");
      if (name.size() > 4 && name.ends_with(".npy")) name.resize(name.size() - 4);
      out.emplace_back(std::move(name), std::move(x));
    } catch (const IoError& e) {
      if (std::string_view(e.what()).starts_with("load_npz: ")) throw;
      file.fail(str("member ", name, ": ", e.what()));
    }
  }
  return out;
}

}  // namespace weft
