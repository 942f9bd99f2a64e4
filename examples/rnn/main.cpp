// The word language model. Local mode trains in this process. Distributed mode has two workers: "ps" with the
// embedding and the decoder, "trainer" with the recurrent part. A launcher starts them with RANK (0 is ps)
// and WORLD_SIZE, or this program does, as the trainer. With --store and --name it is one worker of an
// elastic group, in which another process may take the place of a dead "ps".
#include <cstdio>

#include <weft/distributed.h>
#include <weft/kernels/accelerator.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"
#include "options.h"
#include "split_model.h"
#include "train.h"

int main(int argc, char** argv) {
  rnn::Options options = rnn::parse(argc, argv);
  return examples::guarded("rnn", [&] {
    if (options.threads > 0) weft::set_num_threads(static_cast<int>(options.threads));
    const bool split = options.mode == "distributed";
    examples::Corpus corpus;
    const auto load = [&] {
      if (options.tutorial) {  // no corpus: the words are the ids of the vocabulary
        for (int64_t id = 0; id < options.vocabulary; ++id) corpus.words.push_back(std::to_string(id));
      } else {
        corpus = examples::load_corpus(options.data, options.batch_size, rnn::kEvalColumns);
        options.vocabulary = corpus.vocabulary();
      }
    };
    const auto train = [&] {
      examples::catch_interrupt();
      if (!options.tutorial)
        std::printf("corpus: %lld words, %zu training tokens\n", static_cast<long long>(corpus.vocabulary()),
                    corpus.train.size());
      const auto model = !split                          ? rnn::make_local_model(options)
                         : options.network.store.empty() ? rnn::make_split_model(options)
                                                         : rnn::make_replaceable_model(options);
      return options.tutorial ? rnn::train_tutorial(options, corpus, *model)
                              : rnn::train(options, corpus, *model);
    };
    // only in the process that trains; the server reads no text and writes no file
    const auto prepare = [&](bool starts_server) {
      examples::check_outputs({options.json});
      examples::check_writable({options.save});
      load();
      const weft::Device device(options.device);
      // throws a DeviceError that names the missing part
      if (starts_server && device.is_cuda() && !weft::cuda::is_available()) weft::backend(device);
    };
    if (!split) return prepare(false), train();
    return examples::run_group(
        {.world_size = 2,
         .most_workers = 2,
         .network = options.network,
         .name = [](int rank, bool spawned) { return (rank == 0) == spawned ? "trainer" : "ps"; },
         .passive = [](const std::string& name) { return name == "ps"; },
         .configure =
             [&](const std::string& name, weft::rpc::InitOptions& init) {
               if (name == "trainer") init.device_maps = rnn::split_device_maps(options);
             },
         .prepare = prepare},
        [&](const std::string&) { return train(); });
  });
}
