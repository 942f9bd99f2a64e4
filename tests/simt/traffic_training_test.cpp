// The memory transactions of the kernels of a training step: attention, the recurrent cell, backwards,
// dropout, clipping and optimizer steps. traffic_test.cpp has planted kernels for these counts.
#include <cstddef>
#include <string>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/optim/optim.h>
#include "simt/rnn_calls.h"
#include "simt/traffic_counts.h"

namespace weft::cuda::traffic_test {
namespace {

/// The traffic of a kernel in the forward of an LSTM.
struct LstmTraffic {
  static constexpr int64_t steps = 3, batch = 4, inputs = 64, hidden = 128,
                           states = steps * batch * hidden * 4;
  static KernelTraffic of(const char* kernel, CudaBackend& gpu) {
    Operand x(kFloat32, {steps, batch, inputs}), w_ih(kFloat32, {4 * hidden, inputs}),
        w_hh(kFloat32, {4 * hidden, hidden}), b_ih(kFloat32, {4 * hidden}), b_hh(kFloat32, {4 * hidden}),
        h0(kFloat32, {batch, hidden}), c0(kFloat32, {batch, hidden}), y(kFloat32, {steps, batch, hidden}),
        hn(kFloat32, {batch, hidden}), cn(kFloat32, {batch, hidden}),
        reserve(kFloat32, {steps, batch, 6 * hidden});
    for (Operand* const each : {&x, &w_ih, &w_hh, &b_ih, &b_hh, &h0, &c0}) each->fill(0.01);
    return traffic_of(kernel, [&](Context& c) {
      gpu.rnn_forward(c, {.mode = RnnMode::kLstm},
                      {x.on_device(), h0.on_device(), c0.on_device(), w_ih.on_device(), w_hh.on_device(),
                       b_ih.on_device(), b_hh.on_device()},
                      {y.on_device(), hn.on_device(), cn.on_device(), reserve.on_device()});
    });
  }
};

TEST_F(SimtTraffic, the_lstm_cell_moves_whole_sectors) {
  set_recurrent_persistent(false);
  const int64_t states = LstmTraffic::states;
  const KernelTraffic t = LstmTraffic::of("rnn_cell", device());
  // four gates from x, h and two biases, and c, which it may read again after each write elsewhere
  EXPECT_EQ(waste(t.read, t.read.bytes, 4), "");
  EXPECT_GE(t.read.bytes, (4 * 4 + 1) * states);
  EXPECT_LE(t.read.bytes, (4 * 4 + 3) * states);
  // y, c and six numbers of the reserve, and the last states
  EXPECT_EQ(waste(t.written, (2 + 6) * states + 2 * states / LstmTraffic::steps, 4), "");
}

TEST_F(SimtTraffic, the_persistent_lstm_reads_its_weights_once_and_has_no_conflicts) {
  set_recurrent_persistent(true);
  const KernelTraffic t = LstmTraffic::of("rnn_lstm_persistent", simt::device_of(4));
  const int64_t states = LstmTraffic::states, batch = LstmTraffic::batch, hidden = LstmTraffic::hidden,
                weights = 4 * hidden * hidden * 4, blocks = simt::last_grid().blocks,
                copied = weights + blocks * states;
  // W_hh, h of each step for each block, four gates from x and two biases, and c
  EXPECT_GE(t.read.bytes, copied + (4 * 3 + 1) * states);
  EXPECT_LE(t.read.bytes, copied + (4 * 4 + 3) * 2 * states);
  // every block has 8 rows of h, though the batch has 4
  EXPECT_EQ(t.stored.bytes, weights + blocks * states / batch * 8);
  EXPECT_EQ(conflict(t), "");
}

TEST_F(SimtTraffic, an_optimizer_step_moves_packs) {
  const int64_t n = 16384, bytes = n * 4;
  const optim::AdamOptions options;
  const optim::Variant v = optim::detail::rule_variant<optim::AdamRule>(options);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> functor(v.functor_bytes / sizeof(Line) + 1);
  optim::detail::rule_construct<optim::AdamRule>(functor.data(), options, 1);
  Operand p(kFloat32, {n}), g(kFloat32, {n}), first(kFloat32, {n}), second(kFloat32, {n});
  for (Operand* const each : {&p, &g, &first, &second}) each->fill(0.5);
  const StepTensor tensor{.param = p.on_device().data,
                          .grad = g.on_device().data,
                          .state = {first.on_device().data, second.on_device().data},
                          .numel = n,
                          .hyper = functor.data()};
  const auto t = traffic_of(v.kernel.name, [&](Context& c) {
    static_cast<Backend&>(device()).step(c, v.kernel, kFloat32, {&tensor, 1});
  });
  EXPECT_EQ(waste(t.written, 3 * bytes), "");
  EXPECT_EQ(waste_beside(t.read, 4 * bytes, 0.3), "");  // each warp reads the table of the step
}

/// A forward and a backward of attention, with 2 heads of `rows` queries and keys.
struct AttentionTraffic {
  static constexpr int64_t heads = 2, rows = 64;
  int64_t width, numbers = heads * rows * width;
  Operand q, k, v, y, stats, dy, dq, dk, dv;

  AttentionTraffic(DType t, int64_t w)
      : width(w),
        q(t, {1, heads, rows, w}),
        k(t, {1, heads, rows, w}),
        v(t, {1, heads, rows, w}),
        y(t, {1, heads, rows, w}),
        stats(accumulate_type(t), {1, heads, rows, 2}),
        dy(t, {1, heads, rows, w}),
        dq(t, {1, heads, rows, w}),
        dk(t, {1, heads, rows, w}),
        dv(t, {1, heads, rows, w}) {
    uint32_t seed = 1;
    for (Operand* const x : {&q, &k, &v, &dy}) x->random(-1, 1, seed++);
  }
  KernelTraffic of(const char* kernel) const {
    AttentionViews a;
    a.q = q.on_device(), a.k = k.on_device(), a.v = v.on_device(), a.scale = 0.5;
    a.y = y.on_device(), a.stats = stats.on_device(), a.dy = dy.on_device();
    a.dq = dq.on_device(), a.dk = dk.on_device(), a.dv = dv.on_device();
    return traffic_of(kernel, [&](Context& c) {
      Backend& gpu = device();
      gpu.attention(c, a);
      gpu.attention_backward(c, a);
    });
  }
};

// A block has 64 queries or keys of half types, 32 of float64 and in the backward of others.
TEST_F(SimtTraffic, attention_moves_whole_sectors_and_has_no_conflicts) {
  for (const DType t : {kFloat32, kFloat64, kBFloat16})
    for (const int64_t width : {64, 128}) {
      if (t == kFloat64 && width > 64) continue;  // composed
      const AttentionTraffic call(t, width);
      const int64_t bytes = call.numbers * size_of(t), all = AttentionTraffic::heads * AttentionTraffic::rows;
      const std::string where = str(t, " ", width);
      const KernelTraffic forward = call.of("attention"), along = call.of("attention_along"),
                          keys = call.of("attention_keys"), queries = call.of("attention_queries");
      // q, and k and v for each block
      EXPECT_EQ(waste(forward.read, (t == kFloat64 ? 5 : 3) * bytes), "") << where;
      // one lane of a row writes its two kept numbers
      EXPECT_EQ(forward.written.sectors, bytes / kSector + all / (is_half(t) ? 2 : 1)) << where;
      EXPECT_EQ(waste(along.read, 2 * bytes, size_of(t)), "") << where;
      // k and v, and for each block q and dy, one of them twice; half types as rows and turned
      EXPECT_EQ(waste_beside(keys.read, (is_half(t) ? 6 : 8) * bytes, 0.08), "") << where;
      EXPECT_EQ(waste(keys.written, 2 * bytes), "") << where;
      EXPECT_EQ(waste_beside(queries.read, (is_half(t) ? 5 : 6) * bytes, 0.04), "") << where;
      EXPECT_EQ(waste(queries.written, bytes), "") << where;
      for (const KernelTraffic& k : {forward, along, keys, queries}) EXPECT_EQ(conflict(k), "") << where;
    }
}

TEST_F(SimtTraffic, the_lstm_cells_backward_moves_whole_sectors) {
  const RnnLayer lstm{RnnMode::kLstm};
  const rnn_calls::Sizes sizes{LstmTraffic::steps, LstmTraffic::batch, LstmTraffic::inputs,
                               LstmTraffic::hidden};
  for (const DType t : {kFloat32, kBFloat16}) {
    const rnn_calls::Layer layer(t, lstm, sizes, {});
    const rnn_calls::Results results(t, lstm, sizes, false);
    const auto backward = [&](bool persistent, const char* kernel) {
      set_recurrent_persistent(persistent);
      return traffic_of(kernel, [&](Context&) {
        layer.run(simt::device_of(4), results, true, [](const Operand& a) { return a.on_device(); });
      });
    };
    const int64_t floats = LstmTraffic::states, states = floats / 4 * size_of(t);
    // i, f, g, o, tanh(c), c before and dy, and in float32 dh and dc; four gates' gradients and dc
    const KernelTraffic cell = backward(false, "rnn_cell_backward");
    EXPECT_EQ(waste(cell.read, 7 * states + 2 * floats, 0), "") << t;
    EXPECT_EQ(waste(cell.written, 4 * states + floats, 0), "") << t;
    // the same and dh; W_hh once, and the gates' gradients of each step in each block
    const KernelTraffic persistent = backward(true, "rnn_lstm_persistent_backward");
    const int64_t blocks = 4, weights = 4 * LstmTraffic::hidden * LstmTraffic::hidden * size_of(t);
    EXPECT_EQ(waste(persistent.read, cell.read.bytes + weights + blocks * 4 * states, 0), "") << t;
    EXPECT_EQ(waste(persistent.written, cell.written.bytes + floats, 0), "") << t;
    EXPECT_EQ(conflict(persistent.loaded), "") << t;
    // W_hh is turned, once per launch; a warp keeps the products of four rows, a multiple of 32 numbers apart
    const int64_t turned = weights / size_of(t) / kWarp, kept = LstmTraffic::steps * LstmTraffic::hidden;
    EXPECT_LE(persistent.stored.conflicts, turned * (kWarp - 1) + kept * 3) << t;
  }
}

TEST_F(SimtTraffic, softmax_backward_reads_and_writes_a_row_once) {
  const Shape shapes[] = {{64, 1024}, {40, 128}, {2, 16384}};
  for (const DType t : {kFloat32, kBFloat16})
    for (const Shape& shape : shapes) {
      const int64_t bytes = shape.numel() * size_of(t);
      Operand y(t, shape), dy(t, shape), dx(t, shape);
      y.random(0, 1, 1), dy.random(-1, 1, 2);
      const auto backward = traffic_of("softmax_backward", [&](Context& c) {
        device().softmax_backward(c, false, y.on_device(), dy.on_device(), dx.on_device());
      });
      EXPECT_EQ(waste(backward.read, 2 * bytes), "") << t << to_string(shape);
      EXPECT_EQ(waste(backward.written, bytes), "") << t << to_string(shape);
      EXPECT_EQ(conflict(backward), "") << t << to_string(shape);
    }
}

TEST_F(SimtTraffic, dropout_moves_packs_of_four_numbers) {
  const int64_t n = 65536;
  for (const DType t : {kFloat32, kBFloat16}) {
    const int64_t bytes = n * size_of(t);
    const Operand x(t, {n}), y(t, {n});
    const auto dropout = traffic_of("dropout", [&](Context& c) {
      device().dropout(c, {1, 2}, 0.5, x.on_device(), y.on_device());
    });
    // a draw of Philox has four numbers
    EXPECT_EQ(waste(dropout.read, bytes, 4 * size_of(t)), "") << t;
    EXPECT_EQ(waste(dropout.written, bytes, 4 * size_of(t)), "") << t;
  }
}

TEST_F(SimtTraffic, joined_rows_are_copied_in_packs) {
  for (const DType t : {kFloat32, kBFloat16}) {
    const int64_t rows = 64, wide = 1024, narrow = 512, bytes = rows * (wide + narrow) * size_of(t);
    const Operand a(t, {rows, wide}), b(t, {rows, narrow}), y(t, {rows, wide + narrow});
    View left = y.on_device(), right = left;
    left.sizes = {rows, wide}, right.sizes = {rows, narrow};
    right.data = static_cast<char*>(right.data) + wide * size_of(t);
    const View xs[] = {a.on_device(), b.on_device()}, ys[] = {left, right};
    const auto cat = traffic_of("copy_each", [&](Context& c) { device().copy_each(c, xs, ys); });
    EXPECT_EQ(waste(cat.read, bytes), "") << t;
    EXPECT_EQ(waste(cat.written, bytes), "") << t;
  }
}

TEST_F(SimtTraffic, clipping_reads_gradients_twice_and_writes_them_once) {
  const int64_t n = 1 << 18, bytes = n * 4;
  Operand a(kFloat32, {n}), norm(kFloat64, {});
  const View xs[] = {a.on_device()};
  const auto clip = [&](const char* kernel) {
    a.fill(1);
    return traffic_of(kernel, [&](Context& c) { device().clip_norm(c, 1, 2, xs, norm.on_device(), {}); });
  };
  const KernelTraffic powers = clip("powers"), scaled = clip("clip");
  EXPECT_EQ(waste_beside(powers.read, bytes, 0.05), "");  // and the table of chunks
  EXPECT_EQ(conflict(powers), "");
  EXPECT_EQ(waste_beside(scaled.read, bytes, 0.05), "");
  EXPECT_EQ(waste(scaled.written, bytes), "");
}

}  // namespace
}  // namespace weft::cuda::traffic_test
