// Reader and writer of safetensors files. The reader computes every size with overflow checks before it
// allocates, and the data sections must tile the file exactly.
#include <weft/tensor/io/safetensors.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include <weft/kernels/backend.h>
#include <weft/kernels/inner/json_quote.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/io/inner/file_ints.h>
#include <weft/tensor/io/inner/file_io.h>
#include <weft/tensor/io/inner/json.h>

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr std::string_view kAlias = "weft.alias.";

/// The types of the format with their width and our dtype, if there is one. Writers sort tensors by this
/// order, the last type first.
struct Type {
  const char* name;
  int bits;
  int ours;                                         // DType, or -1
  detail::FileInt stored = detail::FileInt::kNone;  // a file type narrower than the dtype
};
using detail::FileInt;
constexpr Type kTypes[] = {
    {"BOOL", 8, int(kBool)},
    {"F4", 4, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
    {"U8", 8, int(kUInt8)},
    {"I8", 8, int(kInt32), FileInt::kInt8},
    {"F8_E5M2", 8, -1},
    {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F8_E4M3FNUZ", 8, -1},
    {"F8_E5M2FNUZ", 8, -1},
    {"I16", 16, int(kInt32), FileInt::kInt16},
    {"U16", 16, int(kInt32), FileInt::kUInt16},
    {"F16", 16, int(kFloat16)},
    {"BF16", 16, int(kBFloat16)},
    {"I32", 32, int(kInt32)},
    {"U32", 32, int(kInt64), FileInt::kUInt32},
    {"F32", 32, int(kFloat32)},
    {"C64", 64, -1},
    {"F64", 64, int(kFloat64)},
    {"I64", 64, int(kInt64)},
    {"U64", 64, -1},
};

int rank_of(DType t) {
  for (int i = 0; i < static_cast<int>(std::size(kTypes)); ++i)
    if (kTypes[i].ours == static_cast<int>(t) && kTypes[i].stored == FileInt::kNone) return i;
  return -1;
}

struct Entry {
  std::string name;
  const Type* type = nullptr;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;
};

std::string text_of(const std::vector<uint64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += str(i ? ", " : "", shape[i]);
  return out + "]";
}

Entry read_entry(detail::JsonReader& json, const std::string& name) {
  Entry e;
  e.name = name;
  bool shape = false, offsets = false;
  json.object([&](const std::string& key) {
    if (key == "dtype" && !e.type) {
      const std::string dtype = json.string();
      for (const Type& t : kTypes)
        if (dtype == t.name) e.type = &t;
      if (!e.type) json.fail(str("tensor ", name, " has the unknown dtype ", dtype));
    } else if (key == "shape" && !shape) {
      shape = true;
      json.array([&] { e.shape.push_back(json.unsigned_integer()); });
    } else if (key == "data_offsets" && !offsets) {
      offsets = true;
      std::vector<uint64_t> pair;
      json.array([&] { pair.push_back(json.unsigned_integer()); });
      if (pair.size() != 2)
        json.fail(str("tensor ", name, ": data_offsets has ", static_cast<int64_t>(pair.size()), " numbers"));
      e.begin = pair[0];
      e.end = pair[1];
    } else {
      json.fail(str("tensor ", name, " has the unknown or repeated key ", key));
    }
  });
  if (!e.type || !shape || !offsets)
    json.fail(str("tensor ", name, " lacks ", !e.type ? "dtype" : !shape ? "shape" : "data_offsets"));
  return e;
}

/// Size of an entry in bytes; false if it exceeds 64 bits or is not a whole number of bytes.
bool bytes_of(const Entry& e, uint64_t& bytes) {
  uint64_t bits = static_cast<uint64_t>(e.type->bits);
  for (const uint64_t n : e.shape)
    if (n == 0) {
      bytes = 0;
      return true;
    }
  for (const uint64_t n : e.shape)
    if (__builtin_mul_overflow(bits, n, &bits)) return false;
  bytes = bits / 8;
  return bits % 8 == 0 && bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace

SafetensorsFile load_safetensors(const std::string& path) {
  detail::FileReader file("load_safetensors", path);
  if (file.size() < 8) file.fail(str(file.size(), " bytes are too few for a safetensors file"));
  uint64_t length = 0;
  file.read(&length, 8);
  if (length > kMaxHeader)
    file.fail(str("the header claims ", length, " bytes, at most ", kMaxHeader, " are allowed"));
  if (length > file.size() - 8)
    file.fail(str("the header claims ", length, " bytes, the file has ", file.size()));
  std::string header(length, '\0');
  file.read(header.data(), length);
  if (header.empty() || header[0] != '{') file.fail("the header does not begin with '{'");

  std::vector<Entry> entries;
  SafetensorsFile out;
  std::unordered_set<std::string> names;
  try {
    detail::JsonReader json(header);
    json.object([&](const std::string& name) {
      if (!names.insert(name).second) json.fail(str("the name ", name, " appears twice"));
      if (name != "__metadata__") {
        entries.push_back(read_entry(json, name));
        return;
      }
      std::unordered_set<std::string> keys;
      json.object([&](const std::string& key) {
        if (!keys.insert(key).second) json.fail(str("the metadata key ", key, " appears twice"));
        out.metadata.emplace_back(key, json.string());
      });
    });
    json.end();
  } catch (const IoError& e) {
    file.fail(e.what());
  }

  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Entry& e : entries) {
    uint64_t bytes = 0;
    if (!bytes_of(e, bytes))
      file.fail(str("tensor ", e.name, ": shape ", text_of(e.shape), " of ", e.type->name,
                    " has no whole number of bytes"));
    if (e.end < e.begin || e.end - e.begin != bytes)
      file.fail(str("tensor ", e.name, ": shape ", text_of(e.shape), " of ", e.type->name, " takes ", bytes,
                    " bytes, its offsets are ", e.begin, " and ", e.end));
    if (e.begin != at)
      file.fail(str("tensor ", e.name, " begins at byte ", e.begin, " of the data, ",
                    e.begin > at ? "leaving a hole after " : "overlapping ", at));
    at = e.end;
  }
  if (at != file.size() - 8 - length)
    file.fail(str("the tensors take ", at, " bytes of data, the file has ", file.size() - 8 - length));
  for (const Entry& e : entries) {
    if (e.type->ours < 0)
      file.fail(str("tensor ", e.name, " holds ", e.type->name, ", which is not supported"));
    if (e.shape.size() > kMaxDims)
      file.fail(str("tensor ", e.name, " has ", static_cast<int64_t>(e.shape.size()), " dims, at most ",
                    kMaxDims, " are supported"));
  }
  for (const Entry& e : entries) {
    Shape sizes;
    for (const uint64_t n : e.shape) sizes.push_back(static_cast<int64_t>(n));
    Tensor x = empty(sizes, {.dtype = static_cast<DType>(e.type->ours)});
    const auto fill = [&](void* to, uint64_t bytes) { file.read(to, bytes); };
    if (e.type->stored != FileInt::kNone) detail::read_widened(e.type->stored, x, fill);
    else fill(x.address(), e.end - e.begin);
    if (x.dtype() == kBool)
      for (int64_t i = 0; i < x.numel(); ++i) {
        auto& byte = static_cast<uint8_t*>(x.address())[i];
        byte = byte != 0;
      }
    out.tensors.emplace_back(e.name, std::move(x));
  }

  Metadata kept;
  for (auto& [key, value] : out.metadata) {
    if (!key.starts_with(kAlias)) {
      kept.emplace_back(std::move(key), std::move(value));
      continue;
    }
    const std::string name = key.substr(kAlias.size());
    if (names.count(name) || !names.count(value))
      file.fail(str("the alias ", name, " of ", value, " does not fit the tensors"));
    const Tensor same = out.find(value);
    if (!same.defined()) file.fail(str("the alias ", name, " names ", value, ", which is no tensor"));
    out.tensors.emplace_back(name, same);
  }
  out.metadata = std::move(kept);
  return out;
}

namespace {

/// The first byte of x in its storage, and the one after its last.
std::pair<int64_t, int64_t> span_of(const Tensor& x) {
  int64_t low = x.storage_offset(), high = low;
  for (int d = 0; d < x.dim(); ++d) (x.strides()[d] < 0 ? low : high) += (x.sizes()[d] - 1) * x.strides()[d];
  return {low * size_of(x.dtype()), (high + 1) * size_of(x.dtype())};
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  struct Item {
    const std::string* name;
    const Tensor* x;
  };
  std::vector<Item> items;
  Metadata notes = metadata;
  std::unordered_set<std::string> names;
  std::unordered_map<const Storage*, std::vector<Item>> by_storage;
  for (const auto& [name, x] : tensors) {
    if (!x.defined()) launch::throw_undefined("save_safetensors", str("tensor ", name));
    if (name == "__metadata__") throw ValueError("save_safetensors: __metadata__ is no name for a tensor");
    if (!names.insert(name).second) throw ValueError(str("save_safetensors: two tensors are named ", name));
    const Item item{&name, &x};
    bool stored = false;
    if (x.numel() > 0) {
      auto& others = by_storage[x.body().storage.get()];
      const auto [low, high] = span_of(x);
      for (const Item& o : others) {
        if (o.x->sizes() == x.sizes() && o.x->strides() == x.strides() &&
            o.x->storage_offset() == x.storage_offset() && o.x->dtype() == x.dtype()) {
          notes.emplace_back(str(kAlias, name), *o.name);
          stored = true;
          break;
        }
        const auto [olow, ohigh] = span_of(*o.x);
        if (low < ohigh && olow < high)
          throw ValueError(str("save_safetensors: ", name, " and ", *o.name,
                               " are overlapping views; clone() one of them"));
      }
      if (!stored) others.push_back(item);
    }
    if (!stored) items.push_back(item);
  }
  std::unordered_set<std::string> keys;
  for (const auto& [key, value] : notes)
    if (!keys.insert(key).second)
      throw ValueError(str("save_safetensors: the metadata key ", key, " appears twice"));
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    const int ra = rank_of(a.x->dtype()), rb = rank_of(b.x->dtype());
    return ra != rb ? ra > rb : *a.name < *b.name;
  });

  std::string header = "{";
  if (!notes.empty()) {
    header += "\"__metadata__\":{";
    for (size_t i = 0; i < notes.size(); ++i)
      header +=
          str(i ? "," : "", detail::json_quote(notes[i].first), ":", detail::json_quote(notes[i].second));
    header += "}";
  }
  int64_t at = 0;
  for (const Item& item : items) {
    const int64_t end = at + item.x->numel() * size_of(item.x->dtype());
    header += str(header.size() > 1 ? "," : "", detail::json_quote(*item.name), ":{\"dtype\":\"",
                  kTypes[rank_of(item.x->dtype())].name, "\",\"shape\":[");
    for (int d = 0; d < item.x->dim(); ++d) header += str(d ? "," : "", item.x->sizes()[d]);
    header += str("],\"data_offsets\":[", at, ",", end, "]}");
    at = end;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');

  detail::FileWriter file("save_safetensors", path);
  const uint64_t length = header.size();
  file.write(&length, 8);
  file.write(header.data(), length);
  for (const Item& item : items) {
    const Tensor host = detail::host_copy(*item.x);
    file.write(host.address(), static_cast<uint64_t>(host.numel() * size_of(host.dtype())));
  }
  file.commit();
}

}  // namespace weft
