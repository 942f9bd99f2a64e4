// compare_cases: answers the cases that scripts/compare_torch.py writes to its standard input (frame.h),
// until the input ends.
#include <cstdio>
#include <cstring>
#include <typeinfo>

#include "support/compare/rows.h"

#include <weft/kernels/cpu_settings.h>

namespace weft::test {
namespace {

constexpr uint32_t kMaxFrame = uint32_t{1} << 30;

std::string type_of(const std::exception& e) {
#define WEFT_NAMED(Type) \
  if (dynamic_cast<const Type*>(&e)) return #Type;
  WEFT_NAMED(ShapeError)
  WEFT_NAMED(DTypeError)
  WEFT_NAMED(DeviceError)
  WEFT_NAMED(IndexError)
  WEFT_NAMED(ValueError)
  WEFT_NAMED(AutogradError)
  WEFT_NAMED(OutOfMemoryError)
  WEFT_NAMED(Error)
#undef WEFT_NAMED
  return typeid(e).name();
}

Rows all_rows() {
  Rows rows;
  add_pointwise(rows);
  add_writes(rows);
  add_reductions(rows);
  add_shapes(rows);
  add_layers(rows);
  add_training(rows);
  return rows;
}

/// The gradients of the request's leaves, from the outputs with a cotangent.
Outputs gradients(Request& request, const Outputs& results) {
  std::vector<Tensor> roots, cotangents;
  const int count = request.long_count();
  for (int i = 0; i < count; ++i) {
    const Tensor g = request.tensor();
    if (!g.defined() || static_cast<size_t>(i) >= results.size() || !results[i].requires_grad()) continue;
    roots.push_back(results[i]);
    cotangents.push_back(g);
  }
  request.finish();
  if (roots.empty()) return Outputs(request.leaves.size());
  return grad(roots, request.leaves, cotangents, {.allow_unused = true});
}

std::string answer(const Rows& rows, const std::string& body) {
  Answer out;
  const auto fail = [](Status status, const std::exception& e) {
    Answer failed;
    failed.status(status);
    failed.error(status == Status::kMalformed ? "FrameError" : type_of(e), e.what());
    return failed.body();
  };
  try {
    Request request(body);
    const std::string name = request.name();
    const auto row = rows.find(name);
    if (row == rows.end()) throw FrameError(str("no row is called '", name, "'"));
    Outputs results;
    try {
      results = row->second(request);
    } catch (const FrameError&) {
      throw;
    } catch (const std::exception& e) {
      return fail(Status::kCallError, e);
    }
    Answer shown;
    shown.tensors(results, request.first);
    try {
      const Outputs grads = gradients(request, results);
      out.status(Status::kOk);
      return out.body() + shown.body() + [&] {
        Answer part;
        part.tensors(grads, Tensor());
        return part.body();
      }();
    } catch (const FrameError&) {
      throw;
    } catch (const std::exception& e) {
      Answer failed;
      failed.error(type_of(e), e.what());
      out.status(Status::kBackwardError);
      return out.body() + shown.body() + failed.body();
    }
  } catch (const std::exception& e) {
    return fail(Status::kMalformed, e);
  }
}

bool send(const std::string& body) {
  const auto length = static_cast<uint32_t>(body.size());
  return std::fwrite(&length, sizeof length, 1, stdout) == 1 &&
         std::fwrite(body.data(), 1, body.size(), stdout) == body.size() && std::fflush(stdout) == 0;
}

bool refuse(const std::string& text) {
  Answer out;
  out.status(Status::kMalformed);
  out.error("FrameError", text);
  return send(out.body());
}

int serve() {
  const Rows rows = all_rows();
  std::string body;
  for (;;) {
    uint32_t length = 0;
    const size_t got = std::fread(&length, 1, sizeof length, stdin);
    if (got == 0) return 0;
    if (got < sizeof length) return refuse("the input ends within a length"), 1;
    if (length > kMaxFrame) return refuse(str("a frame of ", length, " bytes is above ", kMaxFrame)), 1;
    body.resize(length);
    if (std::fread(body.data(), 1, length, stdin) != length)
      return refuse("the input ends within a frame"), 1;
    if (!send(answer(rows, body))) return 1;
  }
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  if (argc == 2 && !std::strcmp(argv[1], "--rows")) {
    for (const auto& [name, call] : weft::test::all_rows()) std::puts(name.c_str());
    return 0;
  }
  if (argc > 1) {
    std::puts(
        "compare_cases [--rows]: answers the cases on its standard input; --rows prints their names. "
        "scripts/compare_torch.py runs it.");
    return std::strcmp(argv[1], "--help") ? 2 : 0;
  }
  weft::set_num_threads(1);
  return weft::test::serve();
}
