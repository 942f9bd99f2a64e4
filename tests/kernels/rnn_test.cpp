// Recurrent layers: forward against plain loops in double, backward against central differences, both
// partitions of the work. Also strided outputs, missing parts, and the one-unit LSTM whose numbers are
// written down.
#include "arrays.h"

#include <memory>

namespace weft::test {
namespace {

constexpr RnnMode kModes[] = {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu};

struct Sizes {
  int64_t steps = 3, batch = 2, inputs = 3, hidden = 5;
};
struct Options {
  bool bias = true, state = true, reserve = true, half_of_y = false, batch_first = false;
};

/// A layer with all its arrays.
template <class T> struct Case {
  RnnLayer layer;
  Sizes s;
  Options o;
  Array<T> x, h0, c0, w_ih, w_hh, b_ih, b_hh, y, hn, cn, reserve, dy, dhn, dcn, dx, dh0, dc0, dw_ih, dw_hh,
      db_ih, db_hh;

  static Shape outer(const Sizes& s, int64_t columns, bool batch_first, int64_t gap) {
    return batch_first ? Shape{columns * gap, s.steps * columns * gap, 1}
                       : Shape{s.batch * columns * gap, columns * gap, 1};
  }
  Case(RnnLayer l, Sizes z, Options p)
      : layer(l),
        s(z),
        o(p),
        x({z.steps, z.batch, z.inputs}, outer(z, z.inputs, p.batch_first, 1)),
        h0({z.batch, z.hidden}),
        c0({z.batch, z.hidden}),
        w_ih({l.gates() * z.hidden, z.inputs}),
        w_hh({l.gates() * z.hidden, z.hidden}),
        b_ih({l.gates() * z.hidden}),
        b_hh({l.gates() * z.hidden}),
        y({z.steps, z.batch, z.hidden}, outer(z, z.hidden, p.batch_first, p.half_of_y ? 2 : 1)),
        hn({z.batch, z.hidden}),
        cn({z.batch, z.hidden}),
        reserve({z.steps, z.batch, l.reserve_width() * z.hidden}),
        dy({z.steps, z.batch, z.hidden}),
        dhn({z.batch, z.hidden}),
        dcn({z.batch, z.hidden}),
        dx({z.steps, z.batch, z.inputs}, outer(z, z.inputs, p.batch_first, 1)),
        dh0({z.batch, z.hidden}),
        dc0({z.batch, z.hidden}),
        dw_ih({l.gates() * z.hidden, z.inputs}),
        dw_hh({l.gates() * z.hidden, z.hidden}),
        db_ih({l.gates() * z.hidden}),
        db_hh({l.gates() * z.hidden}) {
    const double scale = 1 / std::sqrt(static_cast<double>(z.hidden));
    x.random(1), h0.random(2), c0.random(3), w_ih.random(4), w_hh.random(5, -scale, scale), b_ih.random(6),
        b_hh.random(7);
    dy.random(8), dhn.random(9), dcn.random(10);
  }
  bool lstm() const { return layer.mode == RnnMode::kLstm; }
  RnnInputs inputs() {
    RnnInputs in{x.view(), {}, {}, w_ih.view(), w_hh.view(), {}, {}};
    if (o.state) in.h0 = h0.view();
    if (o.state && lstm()) in.c0 = c0.view();
    if (o.bias) in.b_ih = b_ih.view(), in.b_hh = b_hh.view();
    return in;
  }
  RnnOutputs outputs() {
    RnnOutputs out{y.view(), hn.view(), {}, {}};
    if (lstm()) out.cn = cn.view();
    if (o.reserve) out.reserve = reserve.view();
    return out;
  }
  void forward() {
    Context c;
    cpu().rnn_forward(c, layer, inputs(), outputs());
  }
  void backward() {
    Context c;
    RnnGrads g{dx.view(), {}, {}, dw_ih.view(), dw_hh.view(), {}, {}};
    if (o.state) g.dh0 = dh0.view();
    if (o.state && lstm()) g.dc0 = dc0.view();
    if (o.bias) g.db_ih = db_ih.view(), g.db_hh = db_hh.view();
    cpu().rnn_backward(c, layer, inputs(), outputs(), dy.view(), dhn.view(), lstm() ? dcn.view() : View{}, g);
  }
  /// The cotangents with the outputs.
  double loss() {
    double sum = 0;
    for (int64_t i = 0; i < y.numel(); ++i) sum += y.at(i) * dy.at(i);
    for (int64_t i = 0; i < hn.numel(); ++i)
      sum += hn.at(i) * dhn.at(i) + (lstm() ? cn.at(i) * dcn.at(i) : 0);
    return sum;
  }
};

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

/// y, hn, cn by plain loops.
template <class T> void expect_forward(Case<T>& k, double close) {
  const auto [steps, batch, inputs, hidden] = k.s;
  const int64_t gates = k.layer.gates();
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<double> h(static_cast<size_t>(hidden)), c(h);
    for (int64_t j = 0; k.o.state && j < hidden; ++j) {
      h[static_cast<size_t>(j)] = k.h0.at(n * hidden + j);
      c[static_cast<size_t>(j)] = k.c0.at(n * hidden + j);
    }
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t t = k.layer.reverse ? steps - 1 - step : step;
      std::vector<double> from_x(static_cast<size_t>(gates * hidden)), from_h(from_x);
      for (int64_t r = 0; r < gates * hidden; ++r) {
        double a = k.o.bias ? k.b_ih.at(r) : 0, b = k.o.bias ? k.b_hh.at(r) : 0;
        for (int64_t i = 0; i < inputs; ++i)
          a += k.w_ih.at(r * inputs + i) * k.x.at((t * batch + n) * inputs + i);
        for (int64_t j = 0; j < hidden; ++j) b += k.w_hh.at(r * hidden + j) * h[static_cast<size_t>(j)];
        from_x[static_cast<size_t>(r)] = a, from_h[static_cast<size_t>(r)] = b;
      }
      for (int64_t j = 0; j < hidden; ++j) {
        const auto gate = [&](int64_t g) {
          return from_x[static_cast<size_t>(g * hidden + j)] + from_h[static_cast<size_t>(g * hidden + j)];
        };
        double &state = h[static_cast<size_t>(j)], &cell = c[static_cast<size_t>(j)];
        if (k.layer.mode == RnnMode::kLstm) {
          cell = sigmoid(gate(1)) * cell + sigmoid(gate(0)) * std::tanh(gate(2));
          state = sigmoid(gate(3)) * std::tanh(cell);
        } else if (k.layer.mode == RnnMode::kGru) {
          const auto at = static_cast<size_t>(2 * hidden + j);
          const double m = std::tanh(from_x[at] + sigmoid(gate(0)) * from_h[at]), z = sigmoid(gate(1));
          state = (1 - z) * m + z * state;
        } else {
          state = k.layer.mode == RnnMode::kTanh ? std::tanh(gate(0)) : std::max(gate(0), 0.0);
        }
        ASSERT_NEAR(k.y.at((t * batch + n) * hidden + j), state, close)
            << "t " << t << " n " << n << " j " << j;
      }
    }
    for (int64_t j = 0; j < hidden; ++j) {
      ASSERT_NEAR(k.hn.at(n * hidden + j), h[static_cast<size_t>(j)], close);
      if (k.lstm()) {
        ASSERT_NEAR(k.cn.at(n * hidden + j), c[static_cast<size_t>(j)], close);
      }
    }
  }
}

template <class T> void check_forward(RnnLayer layer, Sizes s, Options o = {}) {
  SCOPED_TRACE(str(dtype_of<T>, " mode ", static_cast<int>(layer.mode), " reverse ", layer.reverse, " sizes ",
                   s.steps, " ", s.batch, " ", s.inputs, " ", s.hidden, " bias ", o.bias, " state ", o.state,
                   " reserve ", o.reserve, " half of y ", o.half_of_y, " batch first ", o.batch_first));
  Case<T> k(layer, s, o);
  k.forward();
  const double relu = layer.mode == RnnMode::kRelu ? 20 : 1;
  expect_forward(k, tolerance<T>(s.inputs + s.hidden) * 2 * relu + (is_half(dtype_of<T>) ? 0.03 : 0));
}

TEST(Rnn, forward_matches_plain_loops_in_every_mode) {
  each_isa([] {
    for (RnnMode mode : kModes)
      for (bool reverse : {false, true}) {
        check_forward<float>({mode, reverse}, {5, 3, 7, 11});
        check_forward<double>({mode, reverse}, {5, 3, 7, 11});
        check_forward<float>({mode, reverse}, {3, 29, 5, 37});  // rows of the batch apart
        check_forward<float>({mode, reverse}, {1, 1, 1, 1});
        for (int options = 0; options < 16; ++options)
          check_forward<double>({mode, reverse}, {3, 2, 3, 17},
                                {(options & 1) != 0, (options & 2) != 0, (options & 4) != 0,
                                 (options & 8) != 0, options % 3 == 0});
      }
  });
}

TEST(Rnn, forward_matches_plain_loops_when_columns_are_cut) {
  each_isa([] {
    for (RnnMode mode : {RnnMode::kLstm, RnnMode::kGru}) {
      check_forward<double>({mode, false}, {2, 5, 3, 307});
      // one vector more than whole panels
      check_forward<float>({mode, false}, {2, 20, 3, 248});
      check_forward<double>({mode, false}, {2, 40, 3, 172});
      check_forward<float>({mode, true}, {2, 17, 3, 301}, {true, true, false});
    }
  });
}

TEST(Rnn, half_types_compute_in_float) {
  each_isa([] {
    for (RnnMode mode : kModes) {
      check_forward<Half>({mode, false}, {3, 2, 5, 7});
      check_forward<BFloat16>({mode, true}, {3, 2, 5, 7}, {true, true, false, true});
    }
    Case<Half> half({RnnMode::kLstm, false}, {3, 2, 5, 7}, {});
    Case<float> single({RnnMode::kLstm, false}, {3, 2, 5, 7}, {});
    half.forward(), half.backward();
    single.forward(), single.backward();
    for (int64_t i = 0; i < half.dw_hh.numel(); ++i)
      EXPECT_NEAR(half.dw_hh.at(i), single.dw_hh.at(i), 0.05) << i;
    for (int64_t i = 0; i < half.dx.numel(); ++i) EXPECT_NEAR(half.dx.at(i), single.dx.at(i), 0.05) << i;
  });
}

/// Central differences of the loss in every element of `x` against `dx`.
void expect_gradient(Case<double>& k, Array<double>& x, Array<double>& dx, const char* name) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double before = x[i], step = 1e-5;
    x[i] = before + step;
    k.forward();
    const double above = k.loss();
    x[i] = before - step;
    k.forward();
    const double below = k.loss();
    x[i] = before;
    ASSERT_NEAR(dx[i], (above - below) / (2 * step), 2e-7) << name << " " << i;
  }
}

void check_backward(RnnLayer layer, Sizes s, Options o) {
  SCOPED_TRACE(str("mode ", static_cast<int>(layer.mode), " reverse ", layer.reverse, " bias ", o.bias,
                   " state ", o.state, " half of y ", o.half_of_y, " batch first ", o.batch_first, " hidden ",
                   s.hidden));
  Case<double> k(layer, s, o);
  k.forward();
  k.backward();
  expect_gradient(k, k.x, k.dx, "x");
  expect_gradient(k, k.w_ih, k.dw_ih, "w_ih");
  expect_gradient(k, k.w_hh, k.dw_hh, "w_hh");
  if (o.state) expect_gradient(k, k.h0, k.dh0, "h0");
  if (o.state && k.lstm()) expect_gradient(k, k.c0, k.dc0, "c0");
  if (o.bias) expect_gradient(k, k.b_ih, k.db_ih, "b_ih");
  if (o.bias) expect_gradient(k, k.b_hh, k.db_hh, "b_hh");
}

TEST(Rnn, backward_matches_central_differences_in_every_mode) {
  each_isa([] {
    for (RnnMode mode : kModes)
      for (bool reverse : {false, true})
        for (int options = 0; options < 4; ++options)
          check_backward({mode, reverse}, {3, 2, 3, 5},
                         {(options & 1) == 0, (options & 2) == 0, true, options == 1, options == 2});
  });
}

TEST(Rnn, backward_of_one_row_cut_by_columns_agrees_with_rows_apart) {
  // The same rows once alone (columns cut) and once among others (rows cut): the sums of an element do not
  // depend on the cut.
  each_isa([] {
    for (RnnMode mode : kModes) {
      Case<double> many({mode, false}, {3, 13, 5, 67}, {}), few({mode, false}, {3, 1, 5, 67}, {});
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t i = 0; i < 5; ++i) few.x[t * 5 + i] = many.x[(t * 13 + 12) * 5 + i];
        for (int64_t j = 0; j < 67; ++j) few.dy[t * 67 + j] = many.dy[(t * 13 + 12) * 67 + j];
      }
      for (int64_t j = 0; j < 67; ++j) {
        few.h0[j] = many.h0[12 * 67 + j], few.c0[j] = many.c0[12 * 67 + j];
        few.dhn[j] = many.dhn[12 * 67 + j], few.dcn[j] = many.dcn[12 * 67 + j];
      }
      many.forward(), many.backward();
      few.forward(), few.backward();
      for (int64_t j = 0; j < 67; ++j) {
        EXPECT_NEAR(few.hn[j], many.hn[12 * 67 + j], 1e-14);
        EXPECT_NEAR(few.dh0[j], many.dh0[12 * 67 + j], 1e-13);
      }
    }
  });
}

TEST(Rnn, float_gradients_of_a_large_layer_agree_with_double) {
  each_isa([] {
    for (RnnMode mode : {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh}) {
      const Sizes sizes = mode == RnnMode::kTanh ? Sizes{5, 64, 3, 248} : Sizes{5, 20, 23, 248};
      Case<float> single({mode, true}, sizes, {});
      Case<double> wide({mode, true}, sizes, {});
      single.forward(), single.backward();
      wide.forward(), wide.backward();
      const auto compare = [](Array<float>& a, Array<double>& b, const char* name) {
        for (int64_t i = 0; i < a.numel(); ++i) ASSERT_NEAR(a.at(i), b.at(i), 1e-4) << name << " " << i;
      };
      compare(single.dx, wide.dx, "dx"), compare(single.dw_ih, wide.dw_ih, "dw_ih"),
          compare(single.dw_hh, wide.dw_hh, "dw_hh");
      compare(single.db_ih, wide.db_ih, "db_ih"), compare(single.db_hh, wide.db_hh, "db_hh"),
          compare(single.dh0, wide.dh0, "dh0");
    }
  });
}

TEST(Rnn, missing_output_gradients_count_as_zero) {
  for (RnnMode mode : kModes) {
    Case<double> k({mode, false}, {3, 2, 3, 5}, {}), zero({mode, false}, {3, 2, 3, 5}, {});
    zero.dy.fill(0), zero.dcn.fill(0);
    k.forward(), zero.forward(), zero.backward();
    Context c;
    const RnnGrads only{{}, {}, {}, {}, k.dw_hh.view(), {}, {}};
    cpu().rnn_backward(c, k.layer, k.inputs(), k.outputs(), {}, k.dhn.view(), {}, only);
    EXPECT_TRUE(k.dw_hh.bytes() == zero.dw_hh.bytes());
  }
}

TEST(Rnn, an_empty_sequence_returns_the_state_and_empty_gradients) {
  for (RnnMode mode : kModes) {
    Case<float> k({mode, false}, {0, 2, 3, 5}, {});
    k.forward(), k.backward();
    EXPECT_TRUE(k.hn.bytes() == k.h0.bytes());
    EXPECT_TRUE(k.dh0.bytes() == k.dhn.bytes());
    for (int64_t i = 0; i < k.dw_hh.numel(); ++i) EXPECT_EQ(k.dw_hh[i], 0);
    for (int64_t i = 0; i < k.dw_ih.numel(); ++i) EXPECT_EQ(k.dw_ih[i], 0);
    for (int64_t i = 0; i < k.db_ih.numel(); ++i) EXPECT_EQ(k.db_ih[i], 0);
    Case<float> nobody({mode, false}, {3, 0, 3, 5}, {});
    nobody.forward(), nobody.backward();
    for (int64_t i = 0; i < nobody.dw_hh.numel(); ++i) EXPECT_EQ(nobody.dw_hh[i], 0);
  }
}

TEST(Rnn, has_the_same_bits_for_any_thread_count) {
  each_isa([] {
    for (const Sizes& s : {Sizes{4, 29, 13, 67}, Sizes{3, 7, 13, 331}, Sizes{3, 20, 13, 200}})
      for (RnnMode mode : {RnnMode::kLstm, RnnMode::kGru})
        expect_same_bits_for_any_thread_count([&] {
          Case<float> k({mode, false}, s, {});
          k.forward(), k.backward();
          return join(
              {k.y.bytes(), k.dx.bytes(), k.dw_ih.bytes(), k.dw_hh.bytes(), k.db_ih.bytes(), k.dh0.bytes()});
        });
  });
}

TEST(Rnn, the_one_unit_lstm_gives_its_known_values) {
  each_isa([] {
    Case<double> k({RnnMode::kLstm, false}, {2, 1, 1, 1}, {});
    for (int64_t g = 0; g < 4; ++g) {
      k.w_ih[g] = 0.1 * static_cast<double>(g + 1), k.w_hh[g] = 0.1 * static_cast<double>(g + 5);
      k.b_ih[g] = 0.01 * static_cast<double>(g + 1), k.b_hh[g] = 0;
    }
    k.x[0] = 1, k.x[1] = 2, k.h0[0] = 0, k.c0[0] = 0;
    k.forward();
    EXPECT_NEAR(k.y[0], 0.101243307370, 1e-12);
    EXPECT_NEAR(k.y[1], 0.299092705206, 1e-12);
    EXPECT_NEAR(k.cn[0], 0.445470134909, 1e-12);
  });
}

}  // namespace
}  // namespace weft::test
