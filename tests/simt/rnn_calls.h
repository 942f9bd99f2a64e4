// A recurrent layer's call with all its operands on the CPU and on the emulated device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda::rnn_calls {

using simt::expect_same;
using simt::Operand;

struct Sizes {
  int64_t steps = 3, batch = 2, inputs = 3, hidden = 5;
};
struct Options {
  bool bias = true, state = true, strided = false;
  bool one_bias = false;      ///< b_ih alone
  bool cotangents = true;     ///< of y and cn; else of hn alone
  bool weights_only = false;  ///< only dw_hh and db_hh are wanted
};

/// The outputs of a layer.
struct Results {
  Operand y, hn, cn, dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh;
  Results(DType t, const RnnLayer& l, const Sizes& s, bool strided)
      // half of a bidirectional, batch-first output
      : y(t, {s.steps, s.batch, s.hidden},
          strided ? Shape{2 * s.hidden, 2 * s.steps * s.hidden, 1} : Shape{}),
        hn(t, {s.batch, s.hidden}),
        cn(t, {s.batch, s.hidden}, strided ? Shape{1, s.batch} : Shape{}),
        dx(t, {s.steps, s.batch, s.inputs}, strided ? Shape{s.inputs, s.steps * s.inputs, 1} : Shape{}),
        dh0(t, {s.batch, s.hidden}),
        dc0(t, {s.batch, s.hidden}),
        dw_ih(t, {l.gates() * s.hidden, s.inputs}),
        dw_hh(t, {l.gates() * s.hidden, s.hidden}, strided ? Shape{1, l.gates() * s.hidden} : Shape{}),
        db_ih(t, {l.gates() * s.hidden}),
        db_hh(t, {l.gates() * s.hidden}, strided ? Shape{2} : Shape{}) {}
};

/// A layer's inputs.
struct Layer {
  RnnLayer layer;
  Sizes s;
  Options o;
  Operand x, h0, c0, w_ih, w_hh, b_ih, b_hh, dy, dhn, dcn;
  Layer(DType t, const RnnLayer& l, const Sizes& z, const Options& p)
      : layer(l),
        s(z),
        o(p),
        x(t, {z.steps, z.batch, z.inputs}, p.strided ? Shape{z.inputs, z.steps * z.inputs, 1} : Shape{}),
        h0(t, {z.batch, z.hidden}, p.strided ? Shape{1, z.batch} : Shape{}),
        c0(t, {z.batch, z.hidden}),
        w_ih(t, {l.gates() * z.hidden, z.inputs}, p.strided ? Shape{2 * z.inputs, 2} : Shape{}),
        w_hh(t, {l.gates() * z.hidden, z.hidden}),
        b_ih(t, {l.gates() * z.hidden}),
        b_hh(t, {l.gates() * z.hidden}, p.strided ? Shape{2} : Shape{}),
        dy(t, {z.steps, z.batch, z.hidden}, p.strided ? Shape{z.hidden, z.steps * z.hidden, 1} : Shape{}),
        dhn(t, {z.batch, z.hidden}),
        dcn(t, {z.batch, z.hidden}) {
    const double scale = 1 / std::sqrt(static_cast<double>(z.hidden));
    w_ih.random(-scale, scale, 4), w_hh.random(-scale, scale, 5);
    uint32_t seed = 6;
    for (Operand* each : {&x, &h0, &c0, &b_ih, &b_hh, &dy, &dhn, &dcn}) each->random(-1, 1, seed++);
  }
  bool lstm() const { return layer.mode == RnnMode::kLstm; }

  /// Forward and backward on a backend, where `place` gives an operand's view there.
  template <class Place> void run(Backend& backend, const Results& r, bool keep, const Place& place) const {
    Context context;
    RnnInputs in{place(x), {}, {}, place(w_ih), place(w_hh), {}, {}};
    if (o.state) in.h0 = place(h0);
    if (o.state && lstm()) in.c0 = place(c0);
    if (o.bias) in.b_ih = place(b_ih);
    if (o.bias && !o.one_bias) in.b_hh = place(b_hh);
    const Shape kept = backend.rnn_reserve(context, layer, in);
    // cuDNN's, or the own cell's
    EXPECT_TRUE(kept.size() == 1 || kept == (Shape{s.steps, s.batch, layer.reserve_width() * s.hidden}));
    const Operand reserve(x.host().dtype, kept);
    RnnOutputs out{place(r.y), place(r.hn), lstm() ? place(r.cn) : View{}, keep ? place(reserve) : View{}};
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
    backend.rnn_backward(context, layer, in, out, o.cotangents ? place(dy) : View{}, place(dhn),
                         o.cotangents && lstm() ? place(dcn) : View{}, g);
  }
};

/// Forward and, with `keep`, backward on the CPU and on a device, whose results must be near.
inline void check_rnn(CudaBackend& device, DType t, const RnnLayer& layer, const Sizes& s,
                      const Options& o = {}, bool keep = true) {
  const std::string where =
      str(t, " mode ", static_cast<int>(layer.mode), " reverse ", layer.reverse, " sizes ", s.steps, " ",
          s.batch, " ", s.inputs, " ", s.hidden, " bias ", o.bias, " state ", o.state, " strided ", o.strided,
          " one bias ", o.one_bias, " cotangents ", o.cotangents, " weights only ", o.weights_only, " keep ",
          keep, ": ");
  const Layer k(t, layer, s, o);
  const Results r(t, layer, s, o.strided);
  k.run(backend(kCpu), r, keep, [](const Operand& a) { return a.host(); });
  k.run(device, r, keep, [](const Operand& a) { return a.on_device(); });
  const double unit = t == kFloat64 ? 2e-15 : t == kFloat32 ? 1e-6 : t == kFloat16 ? 4e-3 : 32e-3;
  const struct {
    const char* name;
    const Operand& y;
  } all[] = {{"y", r.y},     {"hn", r.hn},       {"cn", r.cn},       {"dx", r.dx},       {"dh0", r.dh0},
             {"dc0", r.dc0}, {"dw_ih", r.dw_ih}, {"dw_hh", r.dw_hh}, {"db_ih", r.db_ih}, {"db_hh", r.db_hh}};
  for (const auto& [name, y] : all)
    expect_same(y, unit * static_cast<double>(8 + s.steps + s.hidden + s.inputs), where + name);
}

}  // namespace weft::cuda::rnn_calls
