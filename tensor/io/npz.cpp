// .npz: a zip archive of .npy members. Members are written stored (uncompressed), and read stored or
// deflated. Sizes and offsets of 4 GiB and more are in zip64 fields.
#include <weft/tensor/io/npy.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>

#include <weft/tensor/inner/launch.h>
#include <weft/tensor/io/inner/crc32.h>
#include <weft/tensor/io/inner/file_io.h>
#include <weft/tensor/io/inner/inflate.h>
#include <weft/tensor/io/inner/npy_format.h>

namespace weft {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint32_t kFull32 = 0xFFFFFFFFu;

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

/// Whether unpacking a member of this name would write outside the folder on any system.
bool leaves_its_folder(std::string_view name) {
  if (name.find_first_of(std::string_view("\\\0", 2)) != name.npos || name.starts_with('/') ||
      (name.size() > 1 && name[1] == ':'))
    return true;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..") return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

void save_npz(const std::string& path, const NamedTensors& tensors) {
  std::unordered_set<std::string> names;
  for (const auto& [name, x] : tensors) {
    if (!x.defined()) launch::throw_undefined("save_npz", str("tensor ", name));
    if (name.empty() || name.size() > 60000 || !names.insert(name).second)
      throw ValueError(str("save_npz: the name '", name, "' is empty, too long or repeated"));
    if (leaves_its_folder(name))
      throw ValueError(
          str("save_npz: the name '", name, "' would be unpacked elsewhere than beside the others"));
  }
  detail::FileWriter file("save_npz", path);
  const auto put = [&](const Bytes& b) { file.write(b.text.data(), b.text.size()); };
  std::vector<Member> members;
  for (const auto& [name, x] : tensors) {
    const Tensor host = detail::host_copy(x);
    const std::string header = detail::write_npy_header(x.dtype(), x.sizes());
    const uint64_t bytes = static_cast<uint64_t>(host.numel() * size_of(host.dtype()));
    detail::Crc32 crc;
    crc.add(header.data(), header.size());
    crc.add(host.address(), bytes);
    Member m{name + ".npy", crc.value(), header.size() + bytes, file.position()};
    Bytes local;
    const bool wide = m.size >= kFull32;
    local.u32(kLocal);
    common(local, m, wide, wide ? 20 : 0);
    local.text += m.name;
    if (wide) local.u16(1).u16(16).u64(m.size).u64(m.size);
    put(local);
    file.write(header.data(), header.size());
    file.write(host.address(), bytes);
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

namespace {

/// The entry of a member in the zip directory.
struct ListedMember {
  std::string name = {};  // with ".npy"
  uint64_t method = 0, flags = 0, packed = 0, size = 0, offset = 0;
  uint32_t crc = 0;
  std::string tensor_name() const {
    return name.size() > 4 && name.ends_with(".npy") ? name.substr(0, name.size() - 4) : name;
  }
};

std::vector<unsigned char> bytes_at(detail::FileReader& file, uint64_t at, uint64_t n) {
  std::vector<unsigned char> out(n);
  file.seek(at);
  file.read(out.data(), n);
  return out;
}

struct Directory {
  uint64_t count, at;
};

Directory find_directory(detail::FileReader& file) {
  if (file.size() == 0) file.fail("the file is empty");
  const auto head = bytes_at(file, 0, file.size() < 4 ? file.size() : 4);
  if (head.size() < 4 || (get(&head[0], 4) != kLocal && get(&head[0], 4) != kEnd))
    file.fail("this is no .npz file: it does not begin as a zip archive");
  // The end record has 22 bytes and is followed by a comment of at most 65535 bytes.
  const uint64_t tail_size = file.size() < 22 + 65535 ? file.size() : 22 + 65535;
  const std::vector<unsigned char> tail = bytes_at(file, file.size() - tail_size, tail_size);
  int64_t found = -1;
  for (int64_t i = static_cast<int64_t>(tail.size()) - 22; i >= 0 && found < 0; --i)
    if (get(&tail[static_cast<size_t>(i)], 4) == kEnd) found = i;
  if (found < 0)
    file.fail(str("cut off: the zip directory is missing at the end of its ", file.size(), " bytes"));
  const unsigned char* end = &tail[static_cast<size_t>(found)];
  const uint64_t end_at = file.size() - tail_size + static_cast<uint64_t>(found);
  Directory out{get(end + 10, 2), get(end + 16, 4)};
  if (out.count == 0xFFFF || out.at == kFull32) {
    if (end_at < 20) file.fail("the zip64 locator is missing");
    const auto locator = bytes_at(file, end_at - 20, 20);
    if (get(&locator[0], 4) != kLocator64) file.fail("the zip64 locator is missing");
    const auto wide = bytes_at(file, get(&locator[8], 8), 56);
    if (get(&wide[0], 4) != kEnd64) file.fail("the zip64 directory is missing");
    out = {get(&wide[32], 8), get(&wide[48], 8)};
  }
  return out;
}

/// Reads the entry at `at` and moves `at` to the next.
ListedMember read_listed(detail::FileReader& file, uint64_t& at) {
  const auto fixed = bytes_at(file, at, 46);
  if (get(&fixed[0], 4) != kCentral) file.fail(str("no directory entry at byte ", at));
  const uint64_t name_length = get(&fixed[28], 2), extra_length = get(&fixed[30], 2),
                 comment = get(&fixed[32], 2);
  ListedMember m{.method = get(&fixed[10], 2),
                 .flags = get(&fixed[8], 2),
                 .packed = get(&fixed[20], 4),
                 .size = get(&fixed[24], 4),
                 .offset = get(&fixed[42], 4),
                 .crc = static_cast<uint32_t>(get(&fixed[16], 4))};
  const auto text = bytes_at(file, at + 46, name_length + extra_length);
  m.name.assign(text.begin(), text.begin() + static_cast<int64_t>(name_length));
  for (uint64_t e = name_length; e + 4 <= text.size();) {
    const uint64_t id = get(&text[e], 2), length = get(&text[e + 2], 2);
    if (e + 4 + length > text.size()) break;
    uint64_t p = e + 4;
    const uint64_t stop = p + length;
    if (id == 1)
      for (uint64_t* field : {&m.size, &m.packed, &m.offset})
        if (*field == kFull32 && p + 8 <= stop) {
          *field = get(&text[p], 8);
          p += 8;
        }
    e = stop;
  }
  at += 46 + name_length + extra_length + comment;
  return m;
}

Tensor read_data(detail::FileReader& file, const ListedMember& m) {
  std::optional<detail::Inflater> inflater;
  if (m.method == 8) inflater.emplace(file, m.packed);
  detail::Crc32 crc;
  const auto read = [&](void* to, uint64_t n) {
    if (inflater) inflater->read(to, n);
    else file.read(to, n);
    crc.add(to, n);
  };
  std::vector<unsigned char> head(m.size < 12 ? m.size : 12);
  read(head.data(), head.size());
  const uint64_t first = head.size();
  uint64_t prefix = 0, length = 0;
  detail::read_npy_prefix(head.data(), first, prefix, length);
  if (length > m.size - prefix || prefix + length < first) throw IoError("the .npy header is cut off");
  head.resize(prefix + length);
  read(head.data() + first, head.size() - first);
  const auto* text = reinterpret_cast<const char*>(head.data()) + prefix;
  const detail::NpyHeader header = detail::read_npy_dictionary(std::string_view(text, length));
  if (detail::npy_data_bytes(header) != m.size - prefix - length)
    throw IoError(str("shape ", header.sizes, " does not fit ", m.size - prefix - length, " bytes"));
  Tensor x = detail::read_npy_data(header, read);
  if (inflater) inflater->finish();
  if (crc.value() != m.crc) throw IoError("the checksum is wrong");
  return x;
}

Tensor read_member(detail::FileReader& file, const ListedMember& m) {
  const auto fail = [&](const auto&... parts) { file.fail(str("member ", m.name, parts...)); };
  if (m.flags & 1) fail(" is encrypted");
  if (m.method != 0 && m.method != 8)
    fail(" is compressed by method ", m.method, "; stored and deflated members are read");
  if (m.method == 8 && m.size / detail::Inflater::kMaxRatio > m.packed)
    fail(" claims to unpack from ", m.packed, " to ", m.size, " bytes");
  if (m.method == 0 && m.size != m.packed) fail(" is stored but its two sizes differ");
  const auto local = bytes_at(file, m.offset, 30);
  if (get(&local[0], 4) != kLocal) fail(": no header at byte ", m.offset);
  const uint64_t begin = m.offset + 30 + get(&local[26], 2) + get(&local[28], 2);
  if (begin > file.size() || m.packed > file.size() - begin) fail(" reaches past the end of the file");
  try {
    file.seek(begin);
    return read_data(file, m);
  } catch (const IoError& e) {
    if (std::string_view(e.what()).starts_with("load_npz: ")) throw;
    fail(": ", e.what());
    throw;
  }
}

std::vector<ListedMember> read_directory(detail::FileReader& file) {
  std::vector<ListedMember> out;
  auto [count, at] = find_directory(file);
  for (uint64_t k = 0; k < count; ++k) out.push_back(read_listed(file, at));
  return out;
}

}  // namespace

NamedTensors load_npz(const std::string& path) {
  detail::FileReader file("load_npz", path);
  NamedTensors out;
  for (const ListedMember& m : read_directory(file)) out.emplace_back(m.tensor_name(), read_member(file, m));
  return out;
}

NamedTensors load_npz(const std::string& path, const std::vector<std::string>& names) {
  detail::FileReader file("load_npz", path);
  const std::vector<ListedMember> all = read_directory(file);
  NamedTensors out;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const ListedMember& m) { return m.tensor_name() == name; });
    if (found == all.end()) file.fail(str("there is no member '", name, "'"));
    out.emplace_back(name, read_member(file, *found));
  }
  return out;
}

}  // namespace weft
