// The numbers of the emulated cuDNN: forward and backward of a recurrent stack (rnn.h), in plain loops.
#include "support/libraries/cudnn/rnn.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/libraries/libraries.h"
#include "support/simt/thread.h"

namespace weft::cuda::libraries {

using simt::Fault;

namespace {

constexpr int64_t kGap = 64;
int64_t behind(int64_t at) { return (at + 15) / 16 * 16 + kGap; }
double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

/// One direction of one layer as numbers.
struct Cell {
  std::vector<std::vector<double>> w, u, b, v;  // by gate: weights of input and state, and their biases
  Cell(const Stack& s, int64_t pseudo, const void* weights) {
    const int64_t gates = s.gates();
    for (int64_t id = 0; id < 2 * gates; ++id) {
      const Block at = block_of(s, pseudo, id);
      const auto take = [&](int64_t begin, int64_t n) {
        return begin < 0 ? std::vector<double>(static_cast<size_t>(n))
                         : load(s.type, static_cast<const char*>(weights) + begin, n);
      };
      (id < gates ? w : u).push_back(take(at.matrix, at.rows * at.columns));
      (id < gates ? b : v).push_back(take(at.bias, at.rows));
    }
  }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
void add_scaled(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// The reserve: the values that forward stores for backward, all in double.
struct Reserve {
  static constexpr uint64_t kMade = 0x5245534552564521u;
  struct Head {
    uint64_t made, key, stage;  // stage 1: forward is done; 2: the gates' gradients are stored too
  };
  static constexpr int64_t kHead = 8;  // size of the head in doubles
  const Stack& s;
  double* p;
  int64_t kept = s.gates() + 3, moved = 2 * s.gates();
  Reserve(const Stack& stack, void* reserve) : s(stack), p(static_cast<double*>(reserve)) {}

  int64_t doubles() const {
    return kHead + s.rows() * s.hidden * s.directions * (s.layers * (kept + moved) + s.layers - 1);
  }
  // gates, c, q, h
  double* kept_at(int64_t pseudo, int64_t row) const {
    return p + kHead + (pseudo * s.rows() + row) * kept * s.hidden;
  }
  double* h(int64_t pseudo, int64_t row) const { return kept_at(pseudo, row) + (s.gates() + 2) * s.hidden; }
  // gradients of the gates before their activation: the input's part, the state's part
  double* moved_at(int64_t pseudo, int64_t row) const {
    return p + kHead + s.directions * s.layers * s.rows() * kept * s.hidden +
           (pseudo * s.rows() + row) * moved * s.hidden;
  }
  double* mask(int64_t layer, int64_t row) const {
    return p + kHead + s.directions * s.layers * s.rows() * (kept + moved) * s.hidden +
           (layer * s.rows() + row) * s.width();
  }
  Head head() const {
    Head h;
    std::memcpy(&h, p, sizeof h);
    return h;
  }
  void set_stage(uint64_t stage) const {
    const Head h{kMade, s.key(), stage};
    std::memcpy(p, &h, sizeof h);
  }
  void expect(uint64_t stage, const char* call) const {
    const Head h = head();
    if (h.made != kMade) throw Fault(str(call, ": the reserve was not written by a forward in training"));
    if (h.key != s.key()) throw Fault(str(call, ": the reserve is of another layer"));
    if (h.stage != stage)
      throw Fault(str(call, stage == 1 ? ": the reserve has been through cudnnRNNBackwardData_v8 before"
                                       : ": the reserve has not been through cudnnRNNBackwardData_v8"));
  }
  /// The input of a layer above the first.
  std::vector<double> input(int64_t layer, int64_t row) const {
    std::vector<double> x(static_cast<size_t>(s.width()));
    const double* const m = mask(layer - 1, row);
    for (int64_t d = 0; d < s.directions; ++d)
      for (int64_t j = 0; j < s.hidden; ++j) {
        const int64_t i = d * s.hidden + j;
        x[static_cast<size_t>(i)] = rounded(s.type, h((layer - 1) * s.directions + d, row)[j] * m[i]);
      }
    return x;
  }
};

uint64_t mixed(uint64_t v) {
  v += 0x9E3779B97F4A7C15u;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
  return v ^ (v >> 31);
}

/// The states of all sequences [batch, hidden] of one direction of one layer; zeros if p is null.
std::vector<double> states_of(const Stack& s, int64_t pseudo, const void* p) {
  const int64_t n = s.batch() * s.hidden;
  return p ? load(s.type, static_cast<const char*>(p) + pseudo * n * size_of(s.type), n)
           : std::vector<double>(static_cast<size_t>(n));
}
void keep_states(const Stack& s, int64_t pseudo, void* p, const std::vector<double>& v) {
  const int64_t n = s.batch() * s.hidden;
  if (p) store(s.type, static_cast<char*>(p) + pseudo * n * size_of(s.type), v.data(), n);
}

/// One step of one sequence: updates h and c; stores gates, c, q and h in `kept`.
void step(const Stack& s, const Cell& cell, const double* x, int64_t inputs, double* h, double* c,
          double* kept) {
  const int64_t hidden = s.hidden, gates = s.gates();
  double* const memory = kept + gates * hidden;
  double* const q = memory + hidden;
  double* const after = q + hidden;
  for (int64_t g = 0; g < gates; ++g)
    for (int64_t j = 0; j < hidden; ++j) {
      const auto gate = static_cast<size_t>(g), unit = static_cast<size_t>(j);
      const double in = dot(&cell.w[gate][static_cast<size_t>(j * inputs)], x, inputs) + cell.b[gate][unit];
      const double state =
          dot(&cell.u[gate][static_cast<size_t>(j * hidden)], h, hidden) + cell.v[gate][unit];
      double& out = kept[g * hidden + j];
      switch (s.mode) {
        case CUDNN_LSTM: out = g == 2 ? std::tanh(in + state) : sigmoid(in + state); break;
        case CUDNN_GRU:
          if (g == 2) q[j] = state;
          out = g == 2 ? std::tanh(in + kept[j] * state) : sigmoid(in + state);
          break;
        case CUDNN_RNN_TANH: out = std::tanh(in + state); break;
        case CUDNN_RNN_RELU: out = in + state < 0 ? 0 : in + state; break;
      }
    }
  for (int64_t j = 0; j < hidden; ++j) {
    const auto gate = [&](int64_t g) { return kept[g * hidden + j]; };
    if (s.mode == CUDNN_LSTM)
      c[j] = gate(1) * c[j] + gate(0) * gate(2), memory[j] = c[j], after[j] = gate(3) * std::tanh(c[j]);
    else after[j] = s.mode == CUDNN_GRU ? (1 - gate(1)) * gate(2) + gate(1) * h[j] : gate(0);
    after[j] = rounded(s.type, after[j]);
  }
  std::copy(after, after + hidden, h);
}

/// The stored dropout masks of the outputs of `layer`.
void draw(const Stack& s, const Reserve& r, int64_t layer) {
  const int64_t n = s.rows() * s.width();
  double* const mask = r.mask(layer, 0);
  if (s.dropout == 0) return std::fill(mask, mask + n, 1.0);
  auto* const random = static_cast<Random*>(s.states);
  if (!random || random->made != Random::kMade)
    throw Fault("cudnnRNNForward: the states of dropout were not set");
  for (int64_t i = 0; i < n; ++i)
    mask[i] = static_cast<double>(mixed(random->seed ^ mixed(random->drawn++)) >> 11) * 0x1p-53 < s.dropout
                  ? 0
                  : 1 / (1 - s.dropout);
}

}  // namespace

int64_t Stack::rows() const {
  int64_t sum = 0;
  for (const int length : lengths) sum += length;
  return sum;
}
int64_t Stack::row(int64_t t, int64_t n) const {
  int64_t before = 0;
  for (const int length : lengths) before += std::min<int64_t>(length, t);
  return before + n;
}
uint64_t Stack::key() const {
  uint64_t h = 0;
  const auto add = [&](int64_t part) { h = mixed(h ^ static_cast<uint64_t>(part)); };
  for (const int64_t part :
       {int64_t{mode}, int64_t{bias}, directions, layers, inputs, hidden, static_cast<int64_t>(type)})
    add(part);
  for (const int length : lengths) add(length);
  return h;
}

// The layout of the weights: the last layer first. In each layer the matrices of the state follow one
// another. If `joins_gates`, the matrices of the input and the biases do so too. Else these are separate and
// in reverse order, and so are the biases of the state.
Block block_of(const Stack& s, int64_t pseudo, int64_t id) {
  const int64_t gates = s.gates(), element = size_of(s.type);
  const bool joined = s.joins_gates();
  Block found;
  int64_t at = kGap;
  for (int64_t l = s.layers * s.directions - 1; l >= 0; --l) {
    const auto place = [&](int64_t bytes, int64_t of, int64_t Block::*where) {
      if (l == pseudo && of == id) found.*where = at;
      at += bytes;
    };
    const auto place_gates = [&](int64_t bytes, int64_t first, int64_t Block::*where, bool apart) {
      for (int64_t g = 0; g < gates; ++g) {
        place(bytes, first + (apart ? gates - 1 - g : g), where);
        if (apart) at = behind(at);
      }
      if (joined) at += element;  // the next one is aligned to an element only
      else at = behind(at);
    };
    place_gates(s.hidden * s.hidden * element, gates, &Block::matrix, false);
    place_gates(s.hidden * s.inputs_of(l) * element, 0, &Block::matrix, !joined);
    if (s.bias == CUDNN_RNN_DOUBLE_BIAS || s.bias == CUDNN_RNN_SINGLE_INP_BIAS)
      place_gates(s.hidden * element, 0, &Block::bias, false);
    if (s.bias == CUDNN_RNN_DOUBLE_BIAS || s.bias == CUDNN_RNN_SINGLE_REC_BIAS)
      place_gates(s.hidden * element, gates, &Block::bias, !joined);
  }
  if (pseudo == -1) found.matrix = behind(at);
  else found.rows = s.hidden, found.columns = id < gates ? s.inputs_of(pseudo) : s.hidden;
  return found;
}
int64_t weight_bytes(const Stack& s) { return block_of(s, -1, -1).matrix; }
int64_t reserve_bytes(const Stack& s) { return Reserve(s, nullptr).doubles() * 8; }
int64_t work_bytes(const Stack& s, bool training) { return s.rows() * s.hidden * (training ? 8 : 4) + 256; }

void forward(const Stack& s, const ForwardData& f) {
  std::vector<double> scratch(f.reserve ? 0 : static_cast<size_t>(Reserve(s, nullptr).doubles()));
  const Reserve r(s, f.reserve ? f.reserve : scratch.data());
  const std::vector<double> first = load(s.type, f.x, s.rows() * s.inputs);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t pseudo = layer * s.directions + d, inputs = s.inputs_of(pseudo);
      const Cell cell(s, pseudo, f.weights);
      std::vector<double> h = states_of(s, pseudo, f.hx), c = states_of(s, pseudo, f.cx), above;
      for (int64_t n = 0; n < s.batch(); ++n)
        for (int64_t i = 0, length = s.lengths[static_cast<size_t>(n)]; i < length; ++i) {
          const int64_t row = s.row(d == 0 ? i : length - 1 - i, n);
          if (layer > 0) above = r.input(layer, row);
          const auto state = static_cast<size_t>(n * s.hidden);
          step(s, cell, layer > 0 ? above.data() : &first[static_cast<size_t>(row * inputs)], inputs,
               &h[state], &c[state], r.kept_at(pseudo, row));
        }
      keep_states(s, pseudo, f.hy, h), keep_states(s, pseudo, f.cy, c);
    }
    if (layer + 1 == s.layers) break;
    if (f.reserve) draw(s, r, layer);
    else std::fill(r.mask(layer, 0), r.mask(layer, s.rows()), 1.0);
  }
  for (int64_t row = 0; row < s.rows(); ++row)
    for (int64_t d = 0; d < s.directions; ++d)
      store(s.type, static_cast<char*>(f.y) + (row * s.width() + d * s.hidden) * size_of(s.type),
            r.h((s.layers - 1) * s.directions + d, row), s.hidden);
  if (f.reserve) r.set_stage(1);
}

void backward_data(const Stack& s, const BackwardData& b) {
  const Reserve r(s, b.reserve);
  r.expect(1, "cudnnRNNBackwardData_v8");
  const int64_t hidden = s.hidden, gates = s.gates(), top = s.layers - 1;
  const std::vector<double> y = load(s.type, b.y, s.rows() * s.width());
  std::vector<double> out = load(s.type, b.dy, s.rows() * s.width());  // the gradient of a layer's output
  for (int64_t layer = top; layer >= 0; --layer) {
    std::vector<double> in(static_cast<size_t>(s.rows() * s.inputs_of(layer * s.directions)));
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t pseudo = layer * s.directions + d, inputs = s.inputs_of(pseudo);
      const Cell cell(s, pseudo, b.weights);
      const std::vector<double> h0 = states_of(s, pseudo, b.hx), c0 = states_of(s, pseudo, b.cx);
      std::vector<double> dh = states_of(s, pseudo, b.dhy), dc = states_of(s, pseudo, b.dcy),
                          back(static_cast<size_t>(hidden));
      for (int64_t n = 0; n < s.batch(); ++n)
        for (int64_t length = s.lengths[static_cast<size_t>(n)], i = length - 1; i >= 0; --i) {
          const int64_t row = s.row(d == 0 ? i : length - 1 - i, n),
                        earlier = i == 0 ? -1 : s.row(d == 0 ? i - 1 : length - i, n);
          const double* const kept = r.kept_at(pseudo, row);
          double* const of_input = r.moved_at(pseudo, row);
          double* const of_state = of_input + gates * hidden;
          std::fill(back.begin(), back.end(), 0.0);
          for (int64_t j = 0; j < hidden; ++j) {
            const auto state = static_cast<size_t>(n * hidden + j), unit = static_cast<size_t>(j);
            const auto gate = [&](int64_t g) { return kept[g * hidden + j]; };
            const auto slope = [&](int64_t g) { return gate(g) * (1 - gate(g)); };
            const auto set = [&](int64_t g, double v) {
              of_input[g * hidden + j] = of_state[g * hidden + j] = v;
            };
            const double grad = dh[state] + out[static_cast<size_t>(row * s.width() + d * hidden + j)];
            if (s.mode == CUDNN_LSTM) {
              const double t = std::tanh(kept[4 * hidden + j]),
                           before = earlier < 0 ? c0[state] : r.kept_at(pseudo, earlier)[4 * hidden + j];
              const double memory = dc[state] + grad * gate(3) * (1 - t * t);
              set(0, memory * gate(2) * slope(0)), set(1, memory * before * slope(1)),
                  set(2, memory * gate(0) * (1 - gate(2) * gate(2))), set(3, grad * t * slope(3));
              dc[state] = memory * gate(1);
            } else if (s.mode == CUDNN_GRU) {
              const double before = earlier < 0 ? h0[state]
                                    : layer == top
                                        ? y[static_cast<size_t>(earlier * s.width() + d * hidden + j)]
                                        : r.h(pseudo, earlier)[j];
              const double fresh = grad * (1 - gate(1)) * (1 - gate(2) * gate(2)), q = kept[4 * hidden + j];
              set(0, fresh * q * slope(0)), set(1, grad * (before - gate(2)) * slope(1)), set(2, fresh);
              of_state[2 * hidden + j] = fresh * gate(0);
              back[unit] = grad * gate(1);
            } else {
              set(0, s.mode == CUDNN_RNN_TANH ? grad * (1 - gate(0) * gate(0)) : gate(0) > 0 ? grad : 0);
            }
          }
          for (int64_t g = 0; g < gates; ++g)
            for (int64_t j = 0; j < hidden; ++j) {
              add_scaled(back.data(), of_state[g * hidden + j],
                         &cell.u[static_cast<size_t>(g)][static_cast<size_t>(j * hidden)], hidden);
              add_scaled(&in[static_cast<size_t>(row * inputs)], of_input[g * hidden + j],
                         &cell.w[static_cast<size_t>(g)][static_cast<size_t>(j * inputs)], inputs);
            }
          std::copy(back.begin(), back.end(), dh.begin() + n * hidden);
        }
      keep_states(s, pseudo, b.dhx, dh), keep_states(s, pseudo, b.dcx, dc);
    }
    out = std::move(in);
    if (layer > 0)
      for (size_t i = 0; i < out.size(); ++i) out[i] *= r.mask(layer - 1, 0)[i];
  }
  store(s.type, b.dx, out.data(), s.rows() * s.inputs);
  r.set_stage(2);
}

void backward_weights(const Stack& s, const void* x, const void* hx, const void* y, void* weights,
                      void* reserve) {
  const Reserve r(s, reserve);
  r.expect(2, "cudnnRNNBackwardWeights_v8");
  const int64_t hidden = s.hidden, gates = s.gates();
  const std::vector<double> first = load(s.type, x, s.rows() * s.inputs),
                            last = load(s.type, y, s.rows() * s.width());
  for (int64_t pseudo = 0; pseudo < s.layers * s.directions; ++pseudo) {
    const int64_t layer = pseudo / s.directions, d = pseudo % s.directions, inputs = s.inputs_of(pseudo);
    const std::vector<double> h0 = states_of(s, pseudo, hx);
    Cell sum(s, pseudo, weights);  // gradients are added to the present values
    for (int64_t n = 0; n < s.batch(); ++n)
      for (int64_t i = 0, length = s.lengths[static_cast<size_t>(n)]; i < length; ++i) {
        const int64_t row = s.row(d == 0 ? i : length - 1 - i, n),
                      earlier = i == 0 ? -1 : s.row(d == 0 ? i - 1 : length - i, n);
        const std::vector<double> above = layer > 0 ? r.input(layer, row) : std::vector<double>();
        const double* const in = layer > 0 ? above.data() : &first[static_cast<size_t>(row * inputs)];
        const double* const before = earlier < 0 ? &h0[static_cast<size_t>(n * hidden)]
                                     : layer + 1 == s.layers
                                         ? &last[static_cast<size_t>(earlier * s.width() + d * hidden)]
                                         : r.h(pseudo, earlier);
        const double* const of_input = r.moved_at(pseudo, row);
        const double* const of_state = of_input + gates * hidden;
        for (int64_t g = 0; g < gates; ++g)
          for (int64_t j = 0; j < hidden; ++j) {
            const auto gate = static_cast<size_t>(g), unit = static_cast<size_t>(j);
            add_scaled(&sum.w[gate][static_cast<size_t>(j * inputs)], of_input[g * hidden + j], in, inputs);
            add_scaled(&sum.u[gate][static_cast<size_t>(j * hidden)], of_state[g * hidden + j], before,
                       hidden);
            sum.b[gate][unit] += of_input[g * hidden + j];
            sum.v[gate][unit] += of_state[g * hidden + j];
          }
      }
    for (int64_t id = 0; id < 2 * gates; ++id) {
      const Block at = block_of(s, pseudo, id);
      const auto gate = static_cast<size_t>(id % gates);
      const auto keep = [&](int64_t begin, const std::vector<double>& v) {
        if (begin >= 0)
          store(s.type, static_cast<char*>(weights) + begin, v.data(), static_cast<int64_t>(v.size()));
      };
      keep(at.matrix, id < gates ? sum.w[gate] : sum.u[gate]);
      keep(at.bias, id < gates ? sum.b[gate] : sum.v[gate]);
    }
  }
}

}  // namespace weft::cuda::libraries
