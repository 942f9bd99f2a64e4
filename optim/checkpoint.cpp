// Checkpoints. Loading has these steps:
//   1. read the file and compare its checksum;
//   2. compare its parts with the list;
//   3. load part after part, the largest last, after copying the previous state of each;
//   4. if one throws, restore the copies that can be restored, and throw its error.
// The last part needs no copy if it is here: it throws before it changes anything. If the call of a remote
// part throws, the part may have been loaded.
#include <weft/optim/checkpoint.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/tensor/io/inner/crc32.h>
#include <weft/tensor/io/inner/file_io.h>
#include <weft/tensor/io/safetensors.h>

namespace weft {
namespace {

using State = CheckpointPart::State;

constexpr const char* kVersionKey = "weft.checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kPartsKey = "weft.parts";  // in order, separated by '/'; also parts without tensors
constexpr const char* kChecksumKey = "weft.crc32";
constexpr const char* kDefaultGenerator = "default_generator";
constexpr const char* kStreams = ":streams";  // suffix of a part's name

/// CRC-32 of the parts' names, and of name, dtype, sizes and bytes of each tensor, in the order of names.
std::string checksum(const std::string& parts, const NamedTensors& tensors) {
  std::map<std::string, Tensor> sorted(tensors.begin(), tensors.end());
  detail::Crc32 crc;
  crc.add(parts.data(), parts.size());
  for (const auto& [name, x] : sorted) {
    const std::string about = str(name, '\n', to_string(x.dtype()), x.sizes(), '\n');
    crc.add(about.data(), about.size());
    crc.add(x.address(), static_cast<uint64_t>(x.numel() * size_of(x.dtype())));
  }
  return std::to_string(crc.value());
}

/// The list, plus the default generator if `whole`. Throws: ValueError for a name used twice.
std::vector<CheckpointPart> checked(const std::vector<CheckpointPart>& parts, bool whole) {
  std::vector<CheckpointPart> all = parts;
  if (whole) all.emplace_back(kDefaultGenerator, default_generator());
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (all[i].name == all[j].name)
        throw ValueError(str("checkpoint: two parts are named '", all[i].name, "'"));
  return all;
}

const std::string* find(const Metadata& metadata, const char* key) {
  for (const auto& [name, value] : metadata)
    if (name == key) return &value;
  return nullptr;
}

/// The states of the parts by name, streams under "<part>:streams".
std::map<std::string, State> read_states(const std::string& path) {
  const SafetensorsFile file = load_safetensors(path);
  const auto fail = [&](const std::string& problem) {
    throw IoError(str("load_checkpoint: ", path, ": ", problem));
  };
  const std::string *version = find(file.metadata, kVersionKey), *names = find(file.metadata, kPartsKey),
                    *crc = find(file.metadata, kChecksumKey);
  if (!version || !names || !crc) fail("is no checkpoint");
  if (*version != kVersion)
    fail(str("is a checkpoint of version ", *version, ", this library reads version ", kVersion));
  if (checksum(*names, file.tensors) != *crc) fail("is damaged: its checksum is wrong");
  std::map<std::string, State> out;
  for (size_t at = 0; at < names->size();) {
    const size_t end = std::min(names->find('/', at), names->size());
    out[names->substr(at, end - at)];
    at = end + 1;
  }
  for (const auto& [name, x] : file.tensors) {
    const size_t slash = name.find('/');
    const auto part = out.find(name.substr(0, slash));
    if (slash == std::string::npos || part == out.end())
      fail(str("is damaged: the tensor ", name, " belongs to no part"));
    part->second.emplace_back(name.substr(slash + 1), x);
  }
  return out;
}

void compare_names(const std::string& path, const std::map<std::string, State>& states,
                   const std::vector<CheckpointPart>& parts, bool strict) {
  std::string missing, unexpected;
  for (const CheckpointPart& part : parts)
    if (!part.optional && !states.contains(part.name)) missing += " " + part.name;
  for (const auto& entry : states) {
    const std::string name = entry.first.substr(0, entry.first.find(':'));
    const bool known =
        std::any_of(parts.begin(), parts.end(), [&](const CheckpointPart& p) { return p.name == name; });
    if (!known && entry.first == name && strict) unexpected += " " + name;
  }
  if (missing.empty() && unexpected.empty()) return;
  throw ValueError(str("load_checkpoint: ", path, ":", missing.empty() ? "" : " missing parts:" + missing,
                       missing.empty() || unexpected.empty() ? "" : ";",
                       unexpected.empty() ? "" : " unexpected parts:" + unexpected));
}

int64_t bytes_of(const State& state) {
  int64_t bytes = 0;
  for (const auto& entry : state) bytes += entry.second.numel() * size_of(entry.second.dtype());
  return bytes;
}

State copy_of(State state) {
  for (auto& entry : state) entry.second = detail::host_copy(entry.second).clone();
  return state;
}

/// Calls f(); prefixes its ValueError, ShapeError and DTypeError with the names of the file and the part.
template <class F> void named_load(const std::string& path, const std::string& part, F&& f) {
  const auto text = [&](const std::exception& e) {
    return str("load_checkpoint: ", path, ": part ", part, ": ", e.what());
  };
  try {
    f();
  } catch (const ValueError& e) {
    throw ValueError(text(e));
  } catch (const ShapeError& e) {
    throw ShapeError(text(e));
  } catch (const DTypeError& e) {
    throw DTypeError(text(e));
  }
}

/// One state to load: that of a part, or its random streams.
struct Load {
  std::string name;
  const State* state;
  const Callback<State()>* save;
  const Callback<void(const State&)>* load;
  bool remote;
};

std::vector<Load> loads_of(const std::vector<CheckpointPart>& parts,
                           const std::map<std::string, State>& states) {
  std::vector<Load> out;
  for (const CheckpointPart& part : parts) {
    const auto state = states.find(part.name), streams = states.find(part.name + kStreams);
    if (state != states.end())
      out.push_back({part.name, &state->second, &part.save, &part.load, part.remote});
    if (part.load_streams && streams != states.end())  // a file of an object without streams has none
      out.push_back({part.name, &streams->second, &part.save_streams, &part.load_streams, part.remote});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Load& a, const Load& b) { return bytes_of(*a.state) < bytes_of(*b.state); });
  return out;
}

}  // namespace

CheckpointPart::CheckpointPart(std::string part, Callback<State()> s, Callback<void(const State&)> l)
    : name(std::move(part)), save(std::move(s)), load(std::move(l)) {
  if (name.empty() || name.find_first_of("/:") != std::string::npos)
    throw ValueError(
        str("checkpoint: the name of a part must be non-empty and without '/' and ':', got '", name, "'"));
}

CheckpointPart::CheckpointPart(std::string part, Generator& generator)
    : CheckpointPart(
          std::move(part),
          [&generator] {
            return State{{"", generator_state(generator)}};
          },
          [&generator](const State& s) { set_generator_state(generator, only(s)); }) {}

CheckpointPart::CheckpointPart(std::string part, Tensor& tensor)
    : CheckpointPart(
          std::move(part),
          [&tensor] {
            return tensor.defined() ? State{{"", tensor.detach()}} : State();
          },
          [&tensor](const State& s) { load_tensor(tensor, s); }) {}

void CheckpointPart::load_tensor(Tensor& tensor, const State& state) {
  const Tensor value = state.empty() ? Tensor() : only(state);
  if (tensor.defined() && value.defined() && tensor.dtype() == value.dtype() &&
      tensor.sizes() == value.sizes()) {
    const NoGrad guard;
    tensor.copy_(value);
    return;
  }
  if (tensor.defined() && tensor.requires_grad())  // others may hold this handle: an optimizer, a graph
    throw ShapeError(str(
        "a tensor that requires a gradient keeps its type and sizes: ", tensor.dtype(), " ", tensor.sizes(),
        " here, ", value.defined() ? str(value.dtype(), " ", value.sizes()) : "undefined", " in the file"));
  tensor = tensor.defined() && value.defined() ? value.to(tensor.device()) : value;
}

const Tensor& CheckpointPart::only(const State& state) {
  if (state.size() != 1 || !state[0].first.empty())
    throw ValueError("the file holds something else under this name");
  return state[0].second;
}

Tensor CheckpointPart::number(int64_t value) {
  const Tensor x = empty({}, {.dtype = kInt64});
  *x.data<int64_t>() = value;
  return x;
}
Tensor CheckpointPart::number(double value) {
  const Tensor x = empty({}, {.dtype = kFloat64});
  *x.data<double>() = value;
  return x;
}
int64_t CheckpointPart::integer_of(const State& state) {
  if (only(state).dtype() != kInt64 || only(state).dim() != 0)
    throw ValueError("the file holds no integer under this name");
  return *only(state).data<int64_t>();
}
double CheckpointPart::floating_of(const State& state) {
  if (only(state).dtype() != kFloat64 || only(state).dim() != 0)
    throw ValueError("the file holds no floating number under this name");
  return *only(state).data<double>();
}
void CheckpointPart::does_not_fit(int64_t value) {
  throw ValueError(str("the number ", value, " does not fit the variable's type"));
}
void CheckpointPart::check_magnitude(double value, double most) {
  if (std::isfinite(value) && std::abs(value) > most)
    throw ValueError(str("the number ", value, " does not fit the variable's type"));
}

void save_checkpoint(const std::string& path, const std::vector<CheckpointPart>& parts) {
  NamedTensors tensors;
  std::string names;
  const auto put = [&](const std::string& part, const State& state) {
    names += (names.empty() ? "" : "/") + part;
    for (const auto& [name, x] : state) tensors.emplace_back(part + "/" + name, detail::host_copy(x));
  };
  for (const CheckpointPart& part : checked(parts, true)) {
    put(part.name, part.save());
    if (part.save_streams) put(part.name + kStreams, part.save_streams());
  }
  save_safetensors(path, tensors,
                   {{kVersionKey, kVersion}, {kPartsKey, names}, {kChecksumKey, checksum(names, tensors)}});
}

void load_checkpoint(const std::string& path, const std::vector<CheckpointPart>& parts, bool strict) {
  const std::vector<CheckpointPart> all = checked(parts, strict);
  const std::map<std::string, State> states = read_states(path);
  compare_names(path, states, all, strict);
  const std::vector<Load> loads = loads_of(all, states);
  std::vector<State> before;
  for (size_t i = 0; i < loads.size(); ++i)
    before.push_back(i + 1 < loads.size() || loads[i].remote ? copy_of((*loads[i].save)()) : State());
  for (size_t i = 0; i < loads.size(); ++i) {
    try {
      named_load(path, loads[i].name, [&] { (*loads[i].load)(*loads[i].state); });
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      for (size_t k = loads[i].remote ? i + 1 : i; k-- > 0;) {
        try {
          (*loads[k].load)(before[k]);
        } catch (const std::exception&) {  // its worker is lost, for example
        }
      }
      std::rethrow_exception(error);
    }
  }
}

}  // namespace weft
