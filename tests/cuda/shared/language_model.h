// The word language model of the examples, for tests of training on devices.
#pragma once

#include <weft/weft.h>

namespace weft::test {

struct LanguageModel : nn::Module {
  nn::Embedding encoder;
  nn::LSTM rnn;
  nn::Linear decoder;
  double p;
  /// `dropout` is before and behind the layers, `between` between them.
  LanguageModel(int64_t vocabulary, int64_t size, double dropout, double between = 0)
      : encoder(vocabulary, size),
        rnn(size, size, {.num_layers = 2, .dropout = between}),
        decoder(size, vocabulary),
        p(dropout) {
    add("encoder", encoder), add("rnn", rnn), add("decoder", decoder);
  }
  struct Output {
    Tensor loss, h, c;
  };
  Output forward(const Tensor& ids, const Tensor& target, const Tensor& h, const Tensor& c) {
    const nn::RnnOutput out = rnn.forward(dropout(encoder.forward(ids), p, true, &generator()), h, c);
    const Tensor logits = decoder.forward(dropout(out.y, p, true, &generator()).reshape({-1, out.y.size(2)}));
    return {cross_entropy(logits, target.reshape({-1})), out.h.detach(), out.c.detach()};
  }
  /// Draws every parameter from [-range, range).
  void draw(Generator& numbers, double range) {
    NoGrad quiet;
    for (Tensor& t : parameters()) t.copy_((rand(t.sizes(), {}, &numbers) - 0.5) * (2 * range));
  }
};

}  // namespace weft::test
