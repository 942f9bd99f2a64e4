// Matrix products, optimizer steps and the training step of the word language model.
#include "bench.h"

#include <weft/kernels/cuda_settings.h>

namespace weft::bench {

void products(Bench& b) {
  NoGrad quiet;
  for (const auto& [n, dtype] : {std::pair<int64_t, DType>{4096, kFloat32}, {8192, kBFloat16}}) {
    const Tensor x = randn({n, n}, {.dtype = dtype, .device = gpu}),
                 y = randn({n, n}, {.dtype = dtype, .device = gpu});
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    b.run(
        str("Matmul/", dtype, "/", n), [&] { matmul(x, y); }, 0, flops);
    if (dtype != kFloat32) continue;
    cuda::set_allow_tf32(true);
    b.run(
        str("Matmul/tf32/", n), [&] { matmul(x, y); }, 0, flops);
    cuda::set_allow_tf32(false);
  }
}

/// Two layers with gelu between, for 4096 rows of 1024 numbers and 4096 hidden ones. As one operation gelu
/// and sums are joined with the products where cuBLASLt can. It stands beside the operation in parts.
void feed_forward_part(Bench& b) {
  constexpr int64_t kRows = 4096, kWidth = 1024, kHidden = 4096;
  constexpr double kProduct = 2.0 * kRows * kWidth * kHidden;
  for (const bool tf32 : {false, true})
    for (const DType dtype : {kFloat32, kBFloat16}) {
      if (tf32 && dtype != kFloat32) continue;
      cuda::set_allow_tf32(tf32);
      const auto leaf = [&](const Shape& sizes) {
        return (randn(sizes, {.dtype = dtype, .device = gpu}) * 0.02).requires_grad_();
      };
      const Tensor x = leaf({kRows, kWidth}), w1 = leaf({kHidden, kWidth}), b1 = leaf({kHidden}),
                   w2 = leaf({kWidth, kHidden}), b2 = leaf({kWidth}), g = leaf({kRows, kWidth}).detach();
      const std::string type = tf32 ? "tf32" : str(dtype);
      const auto rows = [&](const std::string& name, const std::function<Tensor()>& forward) {
        b.run(
            str(name, "/both/", type, "/4096x1024x4096"),
            [&] {
              grad({forward()}, {x, w1, b1, w2, b2}, {g});
            },
            0, 6 * kProduct);
        NoGrad quiet;
        b.run(str(name, "/forward/", type, "/4096x1024x4096"), forward, 0, 2 * kProduct);
      };
      rows("FeedForward", [&] { return feed_forward(x, w1, b1, w2, b2); });
      rows("FeedForwardInParts", [&] { return linear(gelu_tanh(linear(x, w1, b1)), w2, b2); });
    }
  cuda::set_allow_tf32(false);
}

/// Flops are those of the products without repetition: 4 L S E forward, 10 L S E backward, half if causal.
/// The other forms are half types on cuDNN where that takes them (AttentionCudnn), and with a gradient that
/// cuDNN adds in any order (AttentionCudnnUnordered).
void attention(Bench& b, Forms forms) {
  const bool plain = forms == Forms::kPlain;
  for (const DType dtype : {kFloat32, kBFloat16})
    for (const int64_t width : {64, 128})
      for (const bool causal : {false, true}) {
        if (!plain && !is_half(dtype)) continue;
        const Shape sizes{8, 1024 / width, 2048, width};
        const std::string size = str(dtype, "/8x", sizes[1], "x2048x", width, causal ? "causal" : "");
        const auto heads = [&] { return randn(sizes, {.dtype = dtype, .device = gpu}).requires_grad_(); };
        const Tensor q = heads(), k = heads(), v = heads(), g = heads().detach();
        const double product = 2.0 * static_cast<double>(q.numel()) * 2048 * (causal ? 0.5 : 1);
        const auto attend = [&] { return scaled_dot_product_attention(q, k, v, {.causal = causal}); };
        const auto both = [&](const std::string& name, const std::vector<Launch>& launches) {
          b.run_with(
              launches, name + "/both/" + size,
              [&] {
                grad({attend()}, {q, k, v}, {g});
              },
              0, 7 * product);
        };
        const auto forward = [&](const std::string& name, const std::vector<Launch>& launches) {
          NoGrad quiet;
          b.run_with(launches, name + "/forward/" + size, attend, 0, 2 * product);
        };
        const bool before = cuda::cudnn_attention();
        cuda::set_cudnn_attention(!plain);
        if (plain) {
          both("Attention", {});
          forward("Attention", {});
        } else {
          const Launch first{"cudnn_attention"}, second{"cudnn_attention_backward"};
          both("AttentionCudnn", {first, second});
          forward("AttentionCudnn", {first});
          cuda::set_ordered_attention(false);
          both("AttentionCudnnUnordered", {first, second});
          cuda::set_ordered_attention(true);
        }
        cuda::set_cudnn_attention(before);
      }
}

/// Parameters of 1 GB in tensors of a model's sizes, and their gradients.
template <class Optimizer, class Options>
void optimizer_step(Bench& b, const std::string& name, const Options& options, double tensors_moved) {
  if (!b.wants(name)) return;
  std::vector<Tensor> parameters;
  int64_t count = 0;
  for (int64_t n = 1000; count < 250'000'000; n = n < 20'000'000 ? n * 3 : 1000) {
    parameters.push_back(randn({n}, {.device = gpu}).requires_grad_());
    parameters.back().set_grad(randn({n}, {.device = gpu}));
    count += n;
  }
  Optimizer optimizer(parameters, options);
  b.run(
      name, [&] { optimizer.step(); }, tensors_moved * 4 * static_cast<double>(count));
}

void optimizers(Bench& b) {
  optimizer_step<optim::SGD>(b, "Step/SGD/1GB", optim::SGDOptions{.lr = 1e-6}, 3);
  optimizer_step<optim::SGD>(b, "Step/Momentum/1GB", optim::SGDOptions{.lr = 1e-6, .momentum = 0.9}, 5);
  optimizer_step<optim::QHM>(b, "Step/QHM/1GB", optim::QHMOptions{.lr = 1e-6}, 5);
  optimizer_step<optim::Adam>(b, "Step/Adam/1GB", optim::AdamOptions{.lr = 1e-6}, 7);
}

/// The training step of the word language model: batch 20, 35 steps, 2 layers, clipping, SGD. Dropout is 0.65
/// or 0.2, by the model's size.
struct LanguageModel : nn::Module {
  nn::Embedding encoder;
  nn::LSTM rnn;
  nn::Linear decoder;
  nn::Dropout drop;
  LanguageModel(int64_t vocabulary, int64_t size, double dropout)
      : encoder(vocabulary, size),
        rnn(size, size, {.num_layers = 2, .dropout = dropout}),
        decoder(size, vocabulary),
        drop(dropout) {
    add("encoder", encoder), add("rnn", rnn), add("decoder", decoder), add("drop", drop);
  }
  Tensor loss(const Tensor& ids, const Tensor& target) {
    const Tensor y = drop.forward(rnn.forward(drop.forward(encoder.forward(ids))).y);
    return cross_entropy(decoder.forward(y.reshape({-1, y.size(2)})), target);
  }
};

/// The chunks of the rows named `Wavefront`.
constexpr int kChunks = 6;

/// All recurrent layers run with a kernel of weft's per step in its scope, until another form is set.
class PerStep {
 public:
  PerStep() { cuda::set_recurrent_persistent(false), cuda::set_use_cudnn(false); }
  ~PerStep() { cuda::set_recurrent_persistent(persistent_), cuda::set_use_cudnn(cudnn_); }
  PerStep(const PerStep&) = delete;

 private:
  const bool persistent_ = cuda::recurrent_persistent(), cudnn_ = cuda::use_cudnn();
};

/// The calls of a pass and its backward. The whole stack on cuDNN is one call of each.
const std::vector<Launch> kPersistent{{"rnn_lstm_persistent"}, {"rnn_lstm_persistent_backward"}},
    kCudnn{{"cudnnRNNForward"}, {"cudnnRNNBackwardData"}},
    kCudnnStack{{"cudnnRNNForward", 1}, {"cudnnRNNBackwardData", 1}};

/// One recurrent layer, and a stack of four, forward and backward, on weft's kernels and on cuDNN. The other
/// forms: LSTMs as persistent kernels, the stack in chunks on two streams, and on cuDNN with weights that lie
/// in its layout, so that they need no copies.
void recurrent_layers(Bench& b, Forms forms) {
  const PerStep per_step;
  const bool plain = forms == Forms::kPlain;
  const std::vector<const char*> kinds =
      plain ? std::vector{"", "Cudnn"} : std::vector{"Wavefront", "Persistent", "CudnnFlat"};
  for (const auto& [steps, batch, size] : {std::array<int64_t, 3>{35, 20, 650},
                                           {35, 20, 1500},
                                           {100, 64, 256},
                                           {100, 64, 512},
                                           {64, 128, 1024},
                                           {256, 8, 512}})
    for (const DType dtype : {kFloat32, kBFloat16}) {
      const auto layer = [&, steps = steps, batch = batch, size = size]<class Layer>(const char* name,
                                                                                     int64_t layers) {
        const std::string sizes = str("/", dtype, "/", steps, "x", batch, "x", size);
        if (!b.wants_any(name, kinds, sizes)) return;
        Layer rnn(size, size, {.num_layers = layers});
        rnn.to(gpu), rnn.to(dtype);
        const Tensor x = randn({steps, batch, size}, {.dtype = dtype, .device = gpu}).requires_grad_(),
                     g = randn({steps, batch, size}, {.dtype = dtype, .device = gpu});
        const auto run = [&](const char* kind, const std::vector<Launch>& launches) {
          b.run_with(launches, str(name, kind, sizes), [&] {
            rnn.zero_grad();
            rnn.forward(x).y.backward(g);
          });
        };
        if (plain) {
          run("", {});
          cuda::set_use_cudnn(true);
          run("Cudnn", kCudnn);
          cuda::set_use_cudnn(false);
          return;
        }
        if (layers > 1) {
          cuda::set_recurrent_wavefront(kChunks);
          run("Wavefront", {});
          cuda::set_recurrent_wavefront(0);
        }
        if constexpr (std::is_same_v<Layer, nn::LSTM>) {
          cuda::set_recurrent_persistent(true);
          run("Persistent", kPersistent);
          cuda::set_recurrent_persistent(false);
        }
        cuda::set_use_cudnn(true);
        rnn.flatten_parameters();
        run("CudnnFlat", kCudnnStack);
        cuda::set_use_cudnn(false);
      };
      layer.template operator()<nn::LSTM>("Lstm", 1);
      layer.template operator()<nn::GRU>("Gru", 1);
      layer.template operator()<nn::LSTM>("LstmStack4", 4);
    }
}

/// The other forms are the same as those of recurrent_layers.
void language_model(Bench& b, int64_t vocabulary, int64_t size, double dropout, Forms forms) {
  const auto row = [&](const char* kind) { return str(kind, "/", vocabulary, "/", size); };
  const std::vector<const char*> plain{"LmStep",          "LmForward",          "LmBackward",
                                       "LmUpdate",        "LmStepBFloat16",     "LmStepGraph",
                                       "LmStepCudnn",     "LmStepCudnnDropout", "LmStepBFloat16Cudnn",
                                       "LmStepGraphCudnn"},
      other{"LmStepWavefront",       "LmStepBFloat16Wavefront",  "LmStepGraphWavefront",
            "LmStepPersistent",      "LmStepBFloat16Persistent", "LmStepGraphPersistent",
            "LmStepCudnnDropoutFlat"};
  if (!b.wants_any("", forms == Forms::kPlain ? plain : other, str("/", vocabulary, "/", size))) return;
  const PerStep per_step;
  manual_seed(1);
  LanguageModel model(vocabulary, size, dropout);
  model.to(gpu);
  const std::vector<Tensor> parameters = model.parameters();
  optim::SGD sgd(parameters, {.lr = 1e-3});
  const Tensor ids = randint(0, vocabulary, {35, 20}, {.dtype = kInt64, .device = gpu}),
               target = randint(0, vocabulary, {700}, {.dtype = kInt64, .device = gpu});
  const auto backward = [&] {
    sgd.zero_grad();
    model.loss(ids, target).backward();
  };
  const auto step = [&] {
    backward();
    optim::clip_grad_norm_async(parameters, 0.25);
    sgd.step();
  };
  const auto half = [&] {
    sgd.zero_grad();
    Tensor loss;
    {
      const Autocast cast(kBFloat16);
      loss = model.loss(ids, target);
    }
    loss.backward();
    optim::clip_grad_norm_async(parameters, 0.25);
    sgd.step();
  };
  const auto recorded = [&](const std::string& name, const std::vector<Launch>& launches = {}) {
    if (!b.wants(name)) return;
    try {
      for (int i = 0; i < 2; ++i) step();  // libraries and the optimizer allocate their state
      cuda::Graph graph(gpu);
      const auto capture = [&] { graph.capture(step); };
      const std::optional<Spans> spans = launches.empty() ? std::nullopt : spans_of(capture);
      if (!spans) capture();
      if (b.shows(name, launches, spans)) b.run(name, [&] { graph.replay(); });
    } catch (const Error& e) {
      b.fail(name, e);
    }
  };
  if (forms == Forms::kPlain) {
    b.run(row("LmStep"), step);
    b.run(row("LmForward"), [&] { model.loss(ids, target); });
    b.run(row("LmBackward"), backward);  // with the forward
    b.run(row("LmUpdate"), [&] {
      optim::clip_grad_norm_async(parameters, 0.25);
      sgd.step();
    });
    b.run(row("LmStepBFloat16"), half);
    recorded(row("LmStepGraph"));
    cuda::set_use_cudnn(true);
    b.run_with(kCudnn, row("LmStepCudnn"), step);
    b.run_with(kCudnn, row("LmStepBFloat16Cudnn"), half);
    recorded(row("LmStepGraphCudnn"), kCudnn);
    cuda::set_cudnn_dropout(true);  // the whole stack in one call, with cuDNN's own masks
    b.run_with(kCudnnStack, row("LmStepCudnnDropout"), step);
    cuda::set_cudnn_dropout(false);
    cuda::set_use_cudnn(false);
    return;
  }
  cuda::set_recurrent_wavefront(kChunks);
  b.run(row("LmStepWavefront"), step);
  b.run(row("LmStepBFloat16Wavefront"), half);
  recorded(row("LmStepGraphWavefront"));
  cuda::set_recurrent_wavefront(0);
  cuda::set_recurrent_persistent(true);
  b.run_with(kPersistent, row("LmStepPersistent"), step);
  b.run_with(kPersistent, row("LmStepBFloat16Persistent"), half);
  recorded(row("LmStepGraphPersistent"), kPersistent);
  cuda::set_recurrent_persistent(false);
  cuda::set_use_cudnn(true);
  cuda::set_cudnn_dropout(true);
  model.rnn.flatten_parameters();
  b.run_with(kCudnnStack, row("LmStepCudnnDropoutFlat"), step);
  cuda::set_cudnn_dropout(false);
  cuda::set_use_cudnn(false);
}

}  // namespace weft::bench
