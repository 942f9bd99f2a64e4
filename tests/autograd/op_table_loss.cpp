// Rows of the losses and the recurrent layers.
#include <algorithm>
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

// The value of a class loss, row by row: x [R, C], target [R]; weight may be null.
struct ClassLoss {
  bool logits = true;
  double smoothing = 0;
  int64_t ignore = -100;
  Reduction reduction = Reduction::kMean;

  Hosts operator()(const Host& x, const Host& target, const Host* weight) const {
    const int64_t rows = x.sizes[0], classes = x.sizes[1];
    Host loss({rows});
    double divisor = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto t = static_cast<int64_t>(target({r}));
      if (t == ignore) continue;
      double mass = 0, best = -1e300;
      for (int64_t c = 0; c < classes; ++c) best = std::max(best, x({r, c}));
      for (int64_t c = 0; c < classes; ++c) mass += std::exp(x({r, c}) - best);
      const double shift = logits ? best + std::log(mass) : 0;
      const double w = weight ? (*weight)({t}) : 1;
      double uniform = 0;
      for (int64_t c = 0; c < classes; ++c) uniform += (shift - x({r, c})) * (weight ? (*weight)({c}) : 1);
      loss({r}) = (1 - smoothing) * w * (shift - x({r, t}));
      if (smoothing != 0) loss({r}) += smoothing / static_cast<double>(classes) * uniform;
      divisor += w;
    }
    if (reduction == Reduction::kNone) return {loss};
    double sum = 0;
    for (double l : loss.v) sum += l;
    return {Host({}, {reduction == Reduction::kSum ? sum : sum / divisor})};
  }
};

Row class_row(const std::string& name, bool weighted, const ClassLoss& f,
              std::function<Tensor(const Tensor&, const Tensor&, const CrossEntropyOptions&)> op) {
  Row row{
      .name = name,
      .args = {real({5, 7}), ids({5}, 7)},
      .call = [op, f, weighted](const Tensors& x) -> Tensors {
        return {op(x[0], x[1],
                   {.weight = weighted ? x[2] : Tensor(),
                    .ignore_index = f.ignore,
                    .label_smoothing = f.smoothing,
                    .reduction = f.reduction})};
      },
      .reference = [f, weighted](const Hosts& in) { return f(in[0], in[1], weighted ? &in[2] : nullptr); },
      .dtypes = {kFloat32, kFloat64},
      .sizes = {{{1, 7}, {1}, {7}}},
      .large = {{61, 307}, {61}, {307}},
      .loose = 4};
  if (weighted) row.args.push_back(fixed({7}, 0.3, 2));
  if (f.ignore >= 0) row.sizes = {};  // the only row could be an ignored one
  const std::string op_name = name.substr(0, name.find("_with")).substr(0, name.find("_of"));
  row.wrong = {{"ShapeError", "target must be [3]",
                [op] {
                  op(zeros({3, 5}), zeros({4}, {.dtype = kInt64}), {});
                }},
               {"DTypeError", "indices must be",
                [op] {
                  op(zeros({3, 5}), zeros({3}), {});
                }},
               {"IndexError", "7",
                [op] {
                  op(zeros({3, 5}), full({3}, 7, {.dtype = kInt64}), {});
                }},
               {"ShapeError", "weight must be [5]", [op] {
                  op(zeros({3, 5}), zeros({3}, {.dtype = kInt64}), {.weight = ones({4})});
                }}};
  return row;
}

Row pair_row(const std::string& name, Tensor (*op)(Fp32Arg, Fp32Arg, Reduction),
             double (*f)(double x, double t), Arg target) {
  return {.name = name,
          .args = {away({3, 5}, 0.5, 0.1), target},
          .call = [op](const Tensors& x) -> Tensors {
            return {op(x[0], x[1], Reduction::kMean), op(x[0], x[1], Reduction::kSum),
                    op(x[0], x[1], Reduction::kNone)};
          },
          .reference = [f](const Hosts& in) -> Hosts {
            const Host each = build(in[0].sizes, [&](const Shape& at) { return f(in[0](at), in[1](at)); });
            double sum = 0;
            for (double l : each.v) sum += l;
            return {Host({}, {sum / static_cast<double>(each.numel())}), Host({}, {sum}), each};
          },
          .sizes = {{{}, {}}, {{1}, {1}}},
          .wrong = {{"ShapeError", name,
                     [op] {
                       op(zeros({3, 5}), zeros({5}), Reduction::kMean);
                     }},
                    {"DTypeError", name,
                     [op] { op(zeros({2}, {.dtype = kInt64}), zeros({2}), Reduction::kMean); }}}};
}

}  // namespace

std::vector<Row> loss_rows() {
  const auto ce = [](const Tensor& x, const Tensor& t, const CrossEntropyOptions& o) {
    return cross_entropy(x, t, o);
  };
  const auto nll = [](const Tensor& x, const Tensor& t, const CrossEntropyOptions& o) {
    return nll_loss(x, t, o);
  };
  std::vector<Row> rows = {
      class_row("cross_entropy", false, {}, ce),
      class_row("cross_entropy_with_sum", false, {.reduction = Reduction::kSum}, ce),
      class_row("cross_entropy_with_none", false, {.reduction = Reduction::kNone}, ce),
      class_row("cross_entropy_with_weight", true, {}, ce),
      class_row("cross_entropy_with_ignore", false, {.ignore = 2}, ce),
      class_row("cross_entropy_with_weight_ignore", true, {.ignore = 2}, ce),
      class_row("cross_entropy_with_smoothing", false, {.smoothing = 0.2}, ce),
      class_row("cross_entropy_with_smoothing_weight", true, {.smoothing = 0.2, .ignore = 2}, ce),
      class_row("nll_loss", false, {.logits = false}, nll),
      class_row("nll_loss_with_weight", true, {.logits = false, .ignore = 2, .reduction = Reduction::kSum},
                nll),
  };
  rows[0].wrong.push_back(
      {"ValueError", "label_smoothing", [] {
         cross_entropy(zeros({3, 5}), zeros({3}, {.dtype = kInt64}), {.label_smoothing = 2});
       }});
  rows.push_back(
      {.name = "cross_entropy_of_images",
       .args = {real({2, 5, 3}), ids({2, 3}, 5)},
       .call = [](const Tensors& x) -> Tensors {
         return {cross_entropy(x[0], x[1]), cross_entropy(x[0], x[1], {.reduction = Reduction::kNone})};
       },
       .reference = [](const Hosts& in) -> Hosts {
         const Host x = build({6, 5}, [&](const Shape& at) { return in[0]({at[0] / 3, at[1], at[0] % 3}); });
         Host t = in[1];
         t.sizes = {6};
         Hosts all = ClassLoss{.reduction = Reduction::kNone}(x, t, nullptr);
         all[0].sizes = {2, 3};
         return {ClassLoss{}(x, t, nullptr)[0], all[0]};
       }});
  for (const bool sum : {false, true}) {
    const CrossEntropyOptions options{.ignore_index = 2,
                                      .label_smoothing = sum ? 0.1 : 0.0,
                                      .reduction = sum ? Reduction::kSum : Reduction::kMean};
    rows.push_back({.name = sum ? "linear_cross_entropy_with_smoothing" : "linear_cross_entropy",
                    .args = {real({5, 3}), real({7, 3}), real({7}), ids({5}, 7)},
                    .call = [options](const Tensors& x) -> Tensors {
                      return {linear_cross_entropy(x[0], x[1], x[2], x[3], options)};
                    },
                    .reference = [options](const Hosts& in) -> Hosts {
                      const Host logits = build({in[0].sizes[0], in[1].sizes[0]}, [&](const Shape& at) {
                        double s = in[2]({at[1]});
                        for (int64_t k = 0; k < in[0].sizes[1]; ++k)
                          s += in[0]({at[0], k}) * in[1]({at[1], k});
                        return s;
                      });
                      return ClassLoss{.smoothing = options.label_smoothing,
                                       .ignore = options.ignore_index,
                                       .reduction = options.reduction}(logits, in[3], nullptr);
                    },
                    .sizes = {{{131, 3}, {7, 3}, {7}, {131}}},
                    .wrong = {{"ShapeError", "linear_cross_entropy",
                               [] {
                                 linear_cross_entropy(zeros({3, 5}), zeros({7, 4}), zeros({7}),
                                                      zeros({3}, {.dtype = kInt64}));
                               }},
                              {"ShapeError", "target",
                               [] {
                                 linear_cross_entropy(zeros({3, 5}), zeros({7, 5}), zeros({7}),
                                                      zeros({4}, {.dtype = kInt64}));
                               }}},
                    .large = {{61, 53}, {307, 53}, {307}, {61}},
                    .loose = 4});
  }
  rows.push_back(pair_row(
      "mse_loss", mse_loss, [](double x, double t) { return (x - t) * (x - t); }, real({3, 5})));
  rows.push_back(pair_row(
      "l1_loss", l1_loss, [](double x, double t) { return std::abs(x - t); }, real({3, 5}, 3, 5)));
  rows.push_back(pair_row(
      "binary_cross_entropy_with_logits", binary_cross_entropy_with_logits,
      [](double x, double t) { return std::log1p(std::exp(-std::abs(x))) + x * (x > 0 ? 1 - t : -t); },
      real({3, 5}, 0, 1)));
  rows.push_back(
      {.name = "smooth_l1_loss",
       .args = {away({3, 5}, 0, 0.1), fixed({3, 5}, -0.05, 0.05)},
       .call = [](const Tensors& x) -> Tensors {
         return {smooth_l1_loss(x[0], x[1], 1.5, Reduction::kNone)};
       },
       .reference = elementwise([](const std::vector<double>& x) {
         const double d = std::abs(x[0] - x[1]);
         return d < 1.5 ? d * d / 3 : d - 0.75;
       }),
       .twice = true,
       .wrong = {{"ValueError", "smooth_l1_loss", [] { smooth_l1_loss(zeros({2}), zeros({2}), -1); }},
                 {"DTypeError", "smooth_l1_loss: the number 1e+300",
                  [] { smooth_l1_loss(zeros({2}), zeros({2}), 1e300); }}}});
  return rows;
}

namespace {

double gate(double x) { return 1 / (1 + std::exp(-x)); }

// One layer in plain loops: in = {x, h0, c0, w_ih, w_hh, b_ih, b_hh}.
Hosts layer(RnnMode mode, bool reverse, const Hosts& in) {
  const Host &x = in[0], &w_ih = in[3], &w_hh = in[4];
  const int64_t steps = x.sizes[0], n = x.sizes[1], width = w_hh.sizes[1];
  Host y({steps, n, width}), h = in[1], c = in[2];
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = reverse ? steps - 1 - i : i;
    const Host before = h;
    for (int64_t b = 0; b < n; ++b) {
      const auto input = [&](int64_t g) {
        double s = in[5]({g});
        for (int64_t k = 0; k < x.sizes[2]; ++k) s += w_ih({g, k}) * x({t, b, k});
        return s;
      };
      const auto past = [&](int64_t g) {
        double s = in[6]({g});
        for (int64_t k = 0; k < width; ++k) s += w_hh({g, k}) * before({b, k});
        return s;
      };
      for (int64_t j = 0; j < width; ++j) {
        const auto both = [&](int64_t g) { return input(g * width + j) + past(g * width + j); };
        double& out = h({b, j});
        if (mode == RnnMode::kTanh) out = std::tanh(both(0));
        else if (mode == RnnMode::kRelu) out = std::max(both(0), 0.0);
        else if (mode == RnnMode::kGru) {
          const double r = gate(both(0)), z = gate(both(1)),
                       m = std::tanh(input(2 * width + j) + r * past(2 * width + j));
          out = (1 - z) * m + z * before({b, j});
        } else {
          double& cell = c({b, j});
          cell = gate(both(1)) * cell + gate(both(0)) * std::tanh(both(2));
          out = gate(both(3)) * std::tanh(cell);
        }
        y({t, b, j}) = out;
      }
    }
  }
  if (mode == RnnMode::kLstm) return {y, h, c};
  return {y, h};
}

}  // namespace

std::vector<Row> rnn_rows() {
  struct Kind {
    const char* name;
    RnnMode mode;
    int64_t gates;
    bool reverse;
  };
  std::vector<Row> rows;
  for (const Kind& k :
       {Kind{"lstm", RnnMode::kLstm, 4, false}, Kind{"lstm_reverse", RnnMode::kLstm, 4, true},
        Kind{"gru", RnnMode::kGru, 3, false}, Kind{"gru_reverse", RnnMode::kGru, 3, true},
        Kind{"rnn_tanh", RnnMode::kTanh, 1, false}, Kind{"rnn_relu", RnnMode::kRelu, 1, true}}) {
    const bool lstm = k.mode == RnnMode::kLstm;
    const auto shapes = [&](int64_t t, int64_t n, int64_t i, int64_t h) {
      const int64_t rows_of = k.gates * h;
      return std::vector<Shape>{{t, n, i}, {n, h}, {n, h}, {rows_of, i}, {rows_of, h}, {rows_of}, {rows_of}};
    };
    const std::vector<Shape> s = shapes(3, 2, 5, 3);
    Row row{.name = k.name,
            .args = {real(s[0]), real(s[1]), lstm ? real(s[2]) : fixed(s[2]), real(s[3], -1, 1),
                     real(s[4], -1, 1), real(s[5]), real(s[6])},
            .call = [k, lstm](const Tensors& x) -> Tensors {
              const RnnResult r =
                  rnn_layer(k.mode, x[0], x[1], lstm ? x[2] : Tensor(), x[3], x[4], x[5], x[6], k.reverse);
              return lstm ? Tensors{r.y, r.hn, r.cn} : Tensors{r.y, r.hn};
            },
            .reference = [k](const Hosts& in) { return layer(k.mode, k.reverse, in); },
            .sizes = {shapes(1, 1, 1, 1), shapes(2, 3, 1, 17)},
            .large = shapes(5, 17, 31, 37),
            .loose = 4};
    row.wrong = {{"ShapeError", "h0 must be [2, 3], is [2, 4]", [k, s, lstm] {
                    rnn_layer(k.mode, zeros(s[0]), zeros({2, 4}), lstm ? zeros(s[2]) : Tensor(), zeros(s[3]),
                              zeros(s[4]), zeros(s[5]), zeros(s[6]), k.reverse);
                  }}};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace weft::op_table
