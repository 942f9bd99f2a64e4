// Every case of the golden file "ops" (tests/golden/README.md), values and gradients: the results of PyTorch
// for the same inputs. The call of a case follows from its name; a case that no rule knows fails the test.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include "support/golden.h"

namespace weft {
namespace {

using testing::close;
using testing::Golden;
using Named = std::vector<std::pair<std::string, Tensor>>;
using Inputs = std::map<std::string, Tensor>;
using Rule = std::function<Named(const std::string& variant, Inputs& in)>;

Named one(Tensor y) { return {{"y", std::move(y)}}; }
Named both(const MaxResult& r) { return {{"values", r.values}, {"indices", r.indices}}; }

std::map<std::string, Rule> unary_rules() {
  const std::map<std::string, std::function<Tensor(const Tensor&)>> ops = {
      {"neg", [](const Tensor& x) { return neg(x); }},
      {"abs", [](const Tensor& x) { return abs(x); }},
      {"sign", [](const Tensor& x) { return sign(x); }},
      {"square", [](const Tensor& x) { return square(x); }},
      {"exp", [](const Tensor& x) { return exp(x); }},
      {"expm1", [](const Tensor& x) { return expm1(x); }},
      {"log", [](const Tensor& x) { return log(x); }},
      {"log1p", [](const Tensor& x) { return log1p(x); }},
      {"log2", [](const Tensor& x) { return log2(x); }},
      {"sqrt", [](const Tensor& x) { return sqrt(x); }},
      {"rsqrt", [](const Tensor& x) { return rsqrt(x); }},
      {"reciprocal", [](const Tensor& x) { return reciprocal(x); }},
      {"sin", [](const Tensor& x) { return sin(x); }},
      {"cos", [](const Tensor& x) { return cos(x); }},
      {"tan", [](const Tensor& x) { return tan(x); }},
      {"tanh", [](const Tensor& x) { return tanh(x); }},
      {"sigmoid", [](const Tensor& x) { return sigmoid(x); }},
      {"log_sigmoid", [](const Tensor& x) { return log_sigmoid(x); }},
      {"erf", [](const Tensor& x) { return erf(x); }},
      {"relu", [](const Tensor& x) { return relu(x); }},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); }},
      {"elu", [](const Tensor& x) { return elu(x); }},
      {"elu_alpha", [](const Tensor& x) { return elu(x, 0.7); }},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"gelu_tanh", [](const Tensor& x) { return gelu_tanh(x); }},
      {"silu", [](const Tensor& x) { return silu(x); }},
      {"softplus", [](const Tensor& x) { return softplus(x); }},
      {"softplus_beta2", [](const Tensor& x) { return where(x > 2.5, x, softplus(x * 2) / 2); }},
      {"hardtanh", [](const Tensor& x) { return clamp(x, -1, 1); }},
      {"mish", [](const Tensor& x) { return x * tanh(softplus(x)); }},
      {"floor", [](const Tensor& x) { return floor(x); }},
      {"ceil", [](const Tensor& x) { return ceil(x); }},
      {"round", [](const Tensor& x) { return round(x); }},
      {"trunc", [](const Tensor& x) { return trunc(x); }}};
  std::map<std::string, Rule> rules;
  for (const auto& [name, op] : ops)
    rules[name] = [op = op](const std::string&, Inputs& in) { return one(op(in["x"])); };
  return rules;
}

std::map<std::string, Rule> binary_rules() {
  std::map<std::string, Rule> rules;
  const auto two = [&](const char* name, Tensor (*op)(In, In)) {
    rules[name] = [op](const std::string&, Inputs& in) { return one(op(in["a"], in["b"])); };
  };
  two("mul", mul), two("div", div), two("maximum", maximum), two("minimum", minimum),
      two("remainder", remainder), two("atan2", atan2);
  two("outer", outer);
  rules["bmm"] = [](const std::string&, Inputs& in) { return one(bmm(in["a"], in["b"])); };
  rules["add"] = [](const std::string&, Inputs& in) { return one(in["a"] + in["b"]); };
  rules["sub"] = [](const std::string&, Inputs& in) { return one(in["a"] - in["b"]); };
  rules["matmul"] = [](const std::string& v, Inputs& in) {
    return one(v == "transposed" ? matmul(in["a"].t(), in["b"].t()) : matmul(in["a"], in["b"]));
  };
  rules["addmm"] = [](const std::string& v, Inputs& in) {
    return one(v == "scaled" ? addmm(in["c"], in["a"], in["b"], 0.5, -2) : addmm(in["c"], in["a"], in["b"]));
  };
  rules["addcmul"] = [](const std::string&, Inputs& in) {
    return one(addcmul(in["a"], in["b"], in["c"], 0.5));
  };
  rules["addcdiv"] = [](const std::string&, Inputs& in) {
    return one(addcdiv(in["a"], in["b"], in["c"], 0.5));
  };
  rules["lerp"] = [](const std::string&, Inputs& in) { return one(lerp(in["a"], in["b"], in["w"])); };
  rules["where"] = [](const std::string&, Inputs& in) { return one(where(in["cond"], in["a"], in["b"])); };
  rules["masked_fill"] = [](const std::string&, Inputs& in) {
    return one(masked_fill(in["x"], in["mask"], -7));
  };
  rules["masked_select"] = [](const std::string&, Inputs& in) {
    return one(masked_select(in["x"], in["mask"]));
  };
  rules["clamp"] = [](const std::string& v, Inputs& in) {
    return one(v == "low_only"    ? maximum(in["x"], 0.5)
               : v == "high_only" ? minimum(in["x"], 0.5)
                                  : clamp(in["x"], -1, 1));
  };
  rules["pow"] = [](const std::string& v, Inputs& in) {
    if (in.count("a")) return one(pow(in["a"], in["b"]));
    if (v == "scalar_base") return one(pow(2.5, in["x"]));
    const std::map<std::string, Scalar> exponents = {
        {"scalar_0", 0}, {"scalar_0_5", 0.5},    {"scalar_2", 2},     {"scalar_2_5", 2.5},
        {"scalar_3", 3}, {"scalar_minus_1", -1}, {"negative_base", 3}};
    return one(pow(in["x"], exponents.at(v)));
  };
  return rules;
}

int dim_of(const std::string& v) {  // "largest_dim2" -> 2, "last" -> -1
  const size_t at = v.find("dim");
  return at == std::string::npos ? -1 : v[at + 3] - '0';
}

std::map<std::string, Rule> reduce_rules() {
  std::map<std::string, Rule> rules;
  const auto dims = [&](const char* name, std::function<Tensor(const Tensor&, const Shape&, bool)> op) {
    rules[name] = [op](const std::string& v, Inputs& in) {
      if (v == "all" || v == "int64") return one(op(in["x"], {}, false));
      if (v == "dims02") return one(op(in["x"], {0, 2}, false));
      return one(op(in["x"], {dim_of(v)}, v.ends_with("keep") || v == "ties_keep"));
    };
  };
  dims("sum", [](const Tensor& x, const Shape& d, bool k) { return sum(x, d, k); });
  dims("mean", [](const Tensor& x, const Shape& d, bool k) { return mean(x, d, k); });
  dims("amax", [](const Tensor& x, const Shape& d, bool k) { return amax(x, d, k); });
  dims("amin", [](const Tensor& x, const Shape& d, bool k) { return amin(x, d, k); });
  dims("any", [](const Tensor& x, const Shape& d, bool k) { return any(x, d, k); });
  dims("all", [](const Tensor& x, const Shape& d, bool k) { return all(x, d, k); });
  rules["logsumexp"] = [](const std::string& v, Inputs& in) {
    const Tensor x = in["x"];
    if (v == "all") return one(logsumexp(flatten(x), 0));
    if (v == "dims02") return one(logsumexp(flatten(permute(x, {1, 0, 2}), 1), 1));
    return one(logsumexp(x, dim_of(v), v.ends_with("keep")));
  };
  for (const char* name : {"std", "var"}) {
    rules[name] = [root = std::string(name) == "std"](const std::string& v, Inputs& in) {
      const int64_t correction = v.back() - '0';
      const Shape over = v.starts_with("dim1") ? Shape{1} : Shape{};
      return one(root ? weft::std(in["x"], over, correction) : var(in["x"], over, correction));
    };
  }
  rules["norm"] = [](const std::string& v, Inputs& in) {
    const std::map<std::string, double> powers = {
        {"0_5", 0.5}, {"1", 1}, {"2", 2}, {"3", 3}, {"inf", std::numeric_limits<double>::infinity()}};
    const std::string p = v.substr(1, v.find(v.ends_with("_dim1") ? "_dim1" : "_of") - 1);
    return one(v.ends_with("_dim1") ? norm(in["x"], powers.at(p), {1}) : norm(in["x"], powers.at(p)));
  };
  rules["prod"] = [](const std::string& v, Inputs& in) {
    return one(v == "all" ? prod(in["x"]) : prod(in["x"], 1));
  };
  rules["cumsum"] = [](const std::string& v, Inputs& in) { return one(cumsum(in["x"], dim_of(v))); };
  rules["cumprod"] = [](const std::string& v, Inputs& in) { return one(cumprod(in["x"], dim_of(v))); };
  rules["argmax"] = [](const std::string& v, Inputs& in) { return one(argmax(in["x"], dim_of(v))); };
  rules["argmin"] = [](const std::string& v, Inputs& in) { return one(argmin(in["x"], dim_of(v))); };
  rules["max"] = [](const std::string& v, Inputs& in) {
    return v == "all" ? one(max(in["x"])) : both(max(in["x"], dim_of(v)));
  };
  rules["min"] = [](const std::string& v, Inputs& in) {
    return v == "all" ? one(min(in["x"])) : both(min(in["x"], dim_of(v)));
  };
  rules["sort"] = [](const std::string& v, Inputs& in) {
    return both(sort(in["x"], dim_of(v), v.find("descending") != std::string::npos));
  };
  rules["topk"] = [](const std::string& v, Inputs& in) {
    return both(topk(in["x"], 2, dim_of(v), v.starts_with("largest")));
  };
  return rules;
}

std::map<std::string, Rule> other_rules() {
  std::map<std::string, Rule> rules;
  const auto add = [&](const char* name, Rule rule) { rules[name] = std::move(rule); };
  add("layer_norm", [](const std::string&, Inputs& in) {
    return one(layer_norm(in["x"], {in["x"].size(-1)}, in["weight"], in["bias"]));
  });
  add("index_select",
      [](const std::string& v, Inputs& in) { return one(index_select(in["x"], dim_of(v), in["index"])); });
  add("gather",
      [](const std::string& v, Inputs& in) { return one(gather(in["x"], dim_of(v), in["index"])); });
  add("scatter", [](const std::string& v, Inputs& in) {
    return one(scatter(in["x"], dim_of(v), in["index"], in["src"]));
  });
  add("scatter_add", [](const std::string& v, Inputs& in) {
    return one(scatter_add(in["x"], dim_of(v), in["index"], in["src"]));
  });
  add("index_add", [](const std::string& v, Inputs& in) {
    return one(index_add(in["x"], dim_of(v), in["index"], in["src"]));
  });
  add("nonzero", [](const std::string&, Inputs& in) { return one(nonzero(in["x"])); });
  add("cat", [](const std::string& v, Inputs& in) { return one(cat({in["a"], in["b"]}, dim_of(v))); });
  add("stack", [](const std::string& v, Inputs& in) { return one(stack({in["a"], in["b"]}, dim_of(v))); });
  add("flip", [](const std::string&, Inputs& in) { return one(flip(in["x"], {1})); });
  add("roll", [](const std::string&, Inputs& in) { return one(roll(in["x"], 2, 1)); });
  add("repeat", [](const std::string&, Inputs& in) { return one(repeat(in["x"], {2, 3})); });
  add("permute", [](const std::string&, Inputs& in) {
    const Tensor x = in["x"];
    return one(x.permute({2, 0, 1}).narrow(0, 1, 3) * x.select(1, 0).slice(1, 1, 4).t().unsqueeze(2));
  });
  const auto diagonal_of = [](const std::string& v) { return v == "kminus_2" ? -2 : v.back() - '0'; };
  add("tril", [=](const std::string& v, Inputs& in) { return one(tril(in["x"], diagonal_of(v))); });
  add("triu", [=](const std::string& v, Inputs& in) { return one(triu(in["x"], diagonal_of(v))); });
  add("convert", [](const std::string& v, Inputs& in) {
    return one(in["x"].to(v == "int64" ? kInt64 : v == "float16" ? kFloat16 : kBFloat16));
  });
  return rules;
}

void expect_case(const Golden& golden, const std::string& name, const Rule& rule) {
  Inputs in;
  bool gradients = false;
  for (const std::string& key : golden.names("cot.")) gradients = gradients || !key.empty();
  for (const std::string& key : golden.names("in.")) {
    Tensor x = golden[key].clone();
    if (gradients && x.is_floating_point()) x.requires_grad_();
    in[key.substr(3)] = x;
  }
  const Named outputs = rule(name.substr(name.find('.') + 1), in);
  const double atol = name == "matmul.larger" ? 2e-5 : 2e-6;
  for (const auto& [key, y] : outputs) {
    const Tensor expected = golden["out." + key];
    EXPECT_EQ(to_string(y.sizes()), to_string(expected.sizes())) << key;
    EXPECT_EQ(to_string(y.dtype()), std::string(to_string(expected.dtype()))) << key;
    EXPECT_TRUE(close(y.detach(), expected, 2e-5, atol)) << key;
  }
  if (!gradients) return;
  std::vector<Tensor> roots, cotangents;
  for (const auto& [key, y] : outputs)
    if (golden.has("cot." + key)) roots.push_back(y), cotangents.push_back(golden["cot." + key]);
  backward(roots, cotangents);
  for (const auto& [key, x] : in)
    if (golden.has("grad.in." + key)) {
      EXPECT_TRUE(close(x.grad(), golden["grad.in." + key], 5e-5, 5e-6)) << "gradient of " << key;
    }
}

TEST(GoldenOps, every_case_has_the_values_and_gradients_of_pytorch) {
  std::map<std::string, Rule> rules = unary_rules();
  for (auto part : {binary_rules(), reduce_rules(), other_rules()}) rules.merge(part);
  const Golden all("ops");
  int cases = 0;
  std::string before;
  for (const std::string& name : all.names()) {  // <op>.<variant>.<rest>
    const std::string id = name.substr(0, name.find('.', name.find('.') + 1));
    if (id == before) continue;
    before = id;
    ++cases;
    SCOPED_TRACE(id);
    const auto rule = rules.find(id.substr(0, id.find('.')));
    if (rule == rules.end()) {
      ADD_FAILURE() << "no rule for this case";
      continue;
    }
    try {
      expect_case(all.at(id), id, rule->second);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
  EXPECT_GT(cases, 230);
}

}  // namespace
}  // namespace weft
