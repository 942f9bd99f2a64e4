// einsum, pair by pair. Letters of a pair are batch letters (in both terms and needed later), contracted
// letters (in both, not needed later) or free ones. Each pair becomes one batched matrix product between
// permutations and reshapes; the gradient is the gradient of these operations.
#include <string>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

struct Term {
  Tensor x;
  std::string letters;
};

[[noreturn]] void malformed(const char* equation, const std::string& why) {
  throw ValueError(str("einsum: \"", equation, "\": ", why));
}

// x with its dims in the order of `letters`.
Tensor ordered(const Term& t, const std::string& letters) {
  Shape dims;
  for (char c : letters) dims.push_back(static_cast<int64_t>(t.letters.find(c)));
  return permute(t.x, dims);
}

int64_t extent(const Term& t, const std::string& letters) {
  int64_t n = 1;
  for (char c : letters) n *= t.x.sizes()[static_cast<int>(t.letters.find(c))];
  return n;
}

// Sums over the letters that are not in `wanted`, after taking the diagonal for a repeated letter.
Term simplified(Term t, const std::string& wanted) {
  for (size_t i = 0; i < t.letters.size();) {
    const size_t twin = t.letters.find(t.letters[i], i + 1);
    if (twin == std::string::npos) {
      ++i;
      continue;
    }
    const char c = t.letters[i];
    t.x = diagonal(t.x, 0, static_cast<int64_t>(i), static_cast<int64_t>(twin));
    t.letters.erase(twin, 1);
    t.letters.erase(i, 1);
    t.letters += c;
  }
  Shape gone;
  std::string left;
  for (size_t i = 0; i < t.letters.size(); ++i) {
    if (wanted.find(t.letters[i]) == std::string::npos) gone.push_back(static_cast<int64_t>(i));
    else left += t.letters[i];
  }
  return {gone.empty() ? t.x : sum(t.x, gone), left};
}

Term multiplied(const Term& a, const Term& b, const std::string& wanted) {
  std::string batch, inner, left, right;
  for (char c : a.letters) {
    const bool shared = b.letters.find(c) != std::string::npos, later = wanted.find(c) != std::string::npos;
    (shared ? (later ? batch : inner) : left) += c;
  }
  for (char c : b.letters)
    if (a.letters.find(c) == std::string::npos) right += c;
  const int64_t n = extent(a, batch), k = extent(a, inner), m = extent(a, left), p = extent(b, right);
  const Tensor x = reshape(ordered(a, batch + left + inner), {n, m, k}),
               y = reshape(ordered(b, batch + inner + right), {n, k, p});
  Term out{Tensor(), batch + left + right};
  Shape sizes;
  for (char c : out.letters)
    sizes.push_back(extent(a.letters.find(c) != std::string::npos ? a : b, std::string(1, c)));
  out.x = reshape(launch::named("einsum", [&] { return bmm(x, y); }), sizes);
  return out;
}

}  // namespace

Tensor einsum(const char* equation, const std::vector<Tensor>& xs) {
  std::vector<std::string> inputs(1);
  std::string output;
  bool arrow = false;
  for (const char* c = equation; *c; ++c) {
    if (*c == ' ') continue;
    if (*c == '-' && c[1] == '>' && !arrow) arrow = (++c, true);
    else if (*c == ',' && !arrow) inputs.emplace_back();
    else if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z')) (arrow ? output : inputs.back()) += *c;
    else malformed(equation, str("unexpected '", *c, "'"));
  }
  if (!arrow) malformed(equation, "no ->");
  if (inputs.size() != xs.size())
    malformed(equation, str(inputs.size(), " terms for ", xs.size(), " tensors"));
  int64_t sizes[128] = {};
  std::string all;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (!xs[i].defined()) launch::throw_undefined("einsum", i + 1);
    if (static_cast<int>(inputs[i].size()) != xs[i].dim())
      throw ShapeError(str("einsum: \"", equation, "\": term ", i, " has ", inputs[i].size(), " letters for ",
                           xs[i].sizes()));
    for (size_t d = 0; d < inputs[i].size(); ++d) {
      int64_t& size = sizes[static_cast<unsigned char>(inputs[i][d])];
      const int64_t here = xs[i].sizes()[static_cast<int>(d)];
      const bool met = all.find(inputs[i][d]) != std::string::npos;
      if (met && size != here)
        throw ShapeError(str("einsum: \"", equation, "\": '", inputs[i][d], "' is ", size, " and ", here));
      size = here;
      all += inputs[i][d];
    }
  }
  for (size_t i = 0; i < output.size(); ++i)
    if (all.find(output[i]) == std::string::npos || output.find(output[i], i + 1) != std::string::npos)
      malformed(equation, str("output letter '", output[i], "' is unknown or doubled"));
  std::vector<std::string> later(xs.size() + 1, output);  // letters wanted after term i
  for (size_t i = xs.size(); i-- > 0;) later[i] = later[i + 1] + inputs[i];
  Term result = simplified({xs[0], inputs[0]}, later[1]);
  for (size_t i = 1; i < xs.size(); ++i) {
    const Term next = simplified({xs[i], inputs[i]}, result.letters + later[i + 1]);
    result = simplified(multiplied(result, next, later[i + 1]), later[i + 1]);
  }
  return ordered(result, output);
}

}  // namespace weft
