// The word language model. Local mode trains in this process; distributed mode is two processes, "ps" with the embedding and the decoder and
// "trainer" with the recurrent part, joined by RANK and WORLD_SIZE or spawned here.
#include <cstdio>

#include "../common/args.h"
#include "options.h"
#include "train.h"

int main(int argc, char** argv) {
  rnn::Options options = rnn::parse(argc, argv);
  return examples::guarded("rnn", [&] {
    if (options.threads > 0) weft::set_num_threads(static_cast<int>(options.threads));
    if (options.tutorial) return rnn::train_tutorial(options, *rnn::make_local_model(options));
    const examples::Corpus corpus = examples::load_corpus(options.data);
    options.vocabulary = corpus.vocabulary();
    std::printf("corpus: %lld words, %zu training tokens\n", static_cast<long long>(corpus.vocabulary()), corpus.train.size());
    return rnn::train(options, corpus, *rnn::make_local_model(options));
  });
}
