// Recurrent layers of the CUDA backend's own cell against the CPU's: every mode and direction, dtypes, sizes around a block, strided operands, absent
// parts, empty sequences.
#include "kernels/arrays.h"
#include "support/simt/device.h"
#include "support/simt/mirror.h"
#include "support/simt/thread.h"

#include <memory>
#include <vector>

namespace weft::test {
namespace {

using cuda::simt::Mirror;

constexpr RnnMode kModes[] = {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu};

struct Sizes {
  int64_t steps = 3, batch = 2, inputs = 3, hidden = 5;
};
struct Options {
  bool bias = true, state = true, strided = false;
  bool one_bias = false;    ///< b_ih alone
  bool cotangents = true;   ///< of y and cn; else of hn alone
  bool weights_only = false;  ///< only dw_hh and db_hh are wanted
};

struct SimtRnn : testing::Test {
  void TearDown() override { cuda::simt::settings() = {}; }
};

/// What a layer writes, on the host.
template <class T> struct Results {
  Array<T> y, hn, cn, reserve, dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh;
  Results(const RnnLayer& l, const Sizes& s, bool strided)
      : y({s.steps, s.batch, s.hidden}, strided ? Shape{2 * s.hidden, 2 * s.steps * s.hidden, 1} : Shape{}),  // half of a bidirectional, batch-first output
        hn({s.batch, s.hidden}), cn({s.batch, s.hidden}, strided ? Shape{1, s.batch} : Shape{}), reserve({s.steps, s.batch, l.reserve_width() * s.hidden}),
        dx({s.steps, s.batch, s.inputs}, strided ? Shape{s.inputs, s.steps * s.inputs, 1} : Shape{}), dh0({s.batch, s.hidden}), dc0({s.batch, s.hidden}),
        dw_ih({l.gates() * s.hidden, s.inputs}), dw_hh({l.gates() * s.hidden, s.hidden}, strided ? Shape{1, l.gates() * s.hidden} : Shape{}), db_ih({l.gates() * s.hidden}),
        db_hh({l.gates() * s.hidden}, strided ? Shape{2} : Shape{}) {}
  std::vector<Array<T>*> all() { return {&y, &hn, &cn, &dx, &dh0, &dc0, &dw_ih, &dw_hh, &db_ih, &db_hh}; }
};

/// A layer's inputs on one device: the host's, or mirrors of them.
template <class T> struct Layer {
  RnnLayer layer;
  Sizes s;
  Options o;
  Array<T> x, h0, c0, w_ih, w_hh, b_ih, b_hh, dy, dhn, dcn;
  Layer(const RnnLayer& l, const Sizes& z, const Options& p)
      : layer(l), s(z), o(p), x({z.steps, z.batch, z.inputs}, p.strided ? Shape{z.inputs, z.steps * z.inputs, 1} : Shape{}), h0({z.batch, z.hidden}, p.strided ? Shape{1, z.batch} : Shape{}),
        c0({z.batch, z.hidden}), w_ih({l.gates() * z.hidden, z.inputs}, p.strided ? Shape{2 * z.inputs, 2} : Shape{}), w_hh({l.gates() * z.hidden, z.hidden}), b_ih({l.gates() * z.hidden}),
        b_hh({l.gates() * z.hidden}, p.strided ? Shape{2} : Shape{}), dy({z.steps, z.batch, z.hidden}, p.strided ? Shape{z.hidden, z.steps * z.hidden, 1} : Shape{}),
        dhn({z.batch, z.hidden}), dcn({z.batch, z.hidden}) {
    const double scale = 1 / std::sqrt(static_cast<double>(z.hidden));
    x.random(1), h0.random(2), c0.random(3), w_ih.random(4, -scale, scale), w_hh.random(5, -scale, scale), b_ih.random(6), b_hh.random(7), dy.random(8), dhn.random(9), dcn.random(10);
  }
  bool lstm() const { return layer.mode == RnnMode::kLstm; }

  /// Forward and backward on a backend, where `place` gives an array's view there.
  template <class Place> void run(Backend& backend, Results<T>& r, bool keep, const Place& place) {
    Context context;
    RnnInputs in{place(x), {}, {}, place(w_ih), place(w_hh), {}, {}};
    if (o.state) in.h0 = place(h0);
    if (o.state && lstm()) in.c0 = place(c0);
    if (o.bias) in.b_ih = place(b_ih);
    if (o.bias && !o.one_bias) in.b_hh = place(b_hh);
    RnnOutputs out{place(r.y), place(r.hn), lstm() ? place(r.cn) : View{}, keep ? place(r.reserve) : View{}};
    EXPECT_TRUE(!keep || backend.rnn_reserve(context, layer, in) == out.reserve.sizes);
    backend.rnn_forward(context, layer, in, out);
    if (!keep) return;
    RnnGrads g;
    g.dw_hh = place(r.dw_hh);
    if (in.b_hh.defined()) g.db_hh = place(r.db_hh);
    if (!o.weights_only) {
      g.dx = place(r.dx), g.dw_ih = place(r.dw_ih);
      if (o.bias) g.db_ih = place(r.db_ih);
      if (o.state) g.dh0 = place(r.dh0);
      if (o.state && lstm()) g.dc0 = place(r.dc0);
    }
    backend.rnn_backward(context, layer, in, out, o.cotangents ? place(dy) : View{}, place(dhn), o.cotangents && lstm() ? place(dcn) : View{}, g);
  }
};

template <class T> void check(const RnnLayer& layer, const Sizes& s, const Options& o = {}, bool keep = true) {
  SCOPED_TRACE(str(dtype_of<T>, " mode ", static_cast<int>(layer.mode), " reverse ", layer.reverse, " sizes ", s.steps, " ", s.batch, " ", s.inputs, " ", s.hidden, " bias ", o.bias, " state ",
                   o.state, " strided ", o.strided, " one bias ", o.one_bias, " cotangents ", o.cotangents, " weights only ", o.weights_only, " keep ", keep));
  Layer<T> k(layer, s, o);
  Results<T> expected(layer, s, o.strided), got(layer, s, o.strided);
  k.run(cpu(), expected, keep, [](Array<T>& a) { return a.view(); });
  {
    std::vector<std::unique_ptr<Mirror>> mirrors;
    k.run(cuda::simt::device(), got, keep, [&](Array<T>& a) {
      mirrors.push_back(std::make_unique<Mirror>(a.view()));
      return mirrors.back()->view();
    });
    for (const auto& m : mirrors) m->fetch();
  }
  const double allowed = (is_half(dtype_of<T>) ? 4 : 10) * tolerance<T>(s.steps + s.hidden + s.inputs);
  const char* const names[] = {"y", "hn", "cn", "dx", "dh0", "dc0", "dw_ih", "dw_hh", "db_ih", "db_hh"};
  for (size_t a = 0; a < std::size(names); ++a)
    for (int64_t i = 0; i < got.all()[a]->numel(); ++i)
      ASSERT_NEAR(got.all()[a]->at(i), expected.all()[a]->at(i), allowed * (1 + std::abs(expected.all()[a]->at(i)))) << names[a] << " " << i;
}

TEST_F(SimtRnn, matches_the_cpu_in_every_mode_and_direction) {
  for (const RnnMode mode : kModes)
    for (const bool reverse : {false, true}) {
      check<double>({mode, reverse}, {3, 2, 3, 5});
      check<float>({mode, reverse}, {4, 3, 7, 11});
      check<float>({mode, reverse}, {2, 2, 3, 130});  // more columns than a block has threads
      check<float>({mode, reverse}, {1, 1, 1, 1});
      check<float>({mode, reverse}, {4, 3, 7, 11}, {}, false);
    }
}

TEST_F(SimtRnn, matches_the_cpu_with_parts_absent_or_strided) {
  for (const RnnMode mode : kModes)
    for (const bool reverse : {false, true}) {
      check<double>({mode, reverse}, {3, 2, 3, 5}, {.bias = false});
      check<double>({mode, reverse}, {3, 2, 3, 5}, {.state = false});
      check<double>({mode, reverse}, {1, 2, 3, 5}, {.state = false});
      check<double>({mode, reverse}, {3, 2, 3, 5}, {.one_bias = true});
      check<double>({mode, reverse}, {3, 2, 3, 5}, {.cotangents = false});
      check<double>({mode, reverse}, {3, 2, 3, 5}, {.weights_only = true});
      check<double>({mode, reverse}, {3, 2, 3, 5}, {.strided = true});
      check<float>({mode, reverse}, {3, 2, 3, 5}, {.strided = true}, false);
      check<float>({mode, reverse}, {2, 1, 3, 1}, {.strided = true});
    }
}

TEST_F(SimtRnn, half_types_compute_in_float) {
  for (const RnnMode mode : kModes) {
    check<Half>({mode, false}, {3, 2, 5, 7});
    check<Half>({mode, true}, {3, 2, 5, 7}, {.strided = true});
    check<BFloat16>({mode, true}, {3, 2, 5, 7});
    check<BFloat16>({mode, false}, {3, 2, 5, 7}, {}, false);
  }
}

TEST_F(SimtRnn, the_order_of_threads_does_not_matter) {
  for (const auto order : {cuda::simt::Order::kReverse, cuda::simt::Order::kShuffled}) {
    cuda::simt::settings() = {.order = order, .poison = 0x00};
    for (const RnnMode mode : kModes) check<float>({mode, false}, {3, 3, 5, 131});
  }
}

TEST_F(SimtRnn, an_empty_sequence_returns_the_state_and_empty_gradients) {
  for (const RnnMode mode : kModes) {
    check<float>({mode, false}, {0, 2, 3, 5});
    check<float>({mode, false}, {0, 2, 3, 5}, {.state = false});
    check<float>({mode, false}, {3, 0, 3, 5});
  }
}

}  // namespace
}  // namespace weft::test
