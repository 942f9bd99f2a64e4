// The flags of the word language model and the checks of their values (options.h).
#include "options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <weft/kernels/device.h>
#include <weft/optim/rules.h>
#include "../common/args.h"

namespace rnn {

std::string Options::placed(const std::string& part) const {
  for (size_t at = 0; at < place.size();) {
    const size_t end = std::min(place.find(',', at), place.size()),
                 equals = std::min(place.find('=', at), end);
    if (place.compare(at, equals - at, part) == 0) return place.substr(equals + 1, end - equals - 1);
    at = end + 1;
  }
  return device;
}

namespace {
/// The error text for --place; empty: no error.
std::string place_error(const std::string& place) {
  for (size_t at = 0; at < place.size();) {
    const size_t end = std::min(place.find(',', at), place.size());
    const std::string item = place.substr(at, end - at), part = item.substr(0, item.find('='));
    if (part == item || (part != "encoder" && part != "rnn" && part != "decoder"))
      return "'" + item + "' is not encoder=DEVICE, rnn=DEVICE or decoder=DEVICE";
    try {
      weft::Device(item.substr(part.size() + 1));
    } catch (const weft::DeviceError& e) {
      return e.what();
    }
    at = end + 1;
  }
  return "";
}

/// The error text of the update rule for its options; empty: no error.
std::string rule_error(const Options& o) {
  try {
    if (o.optimizer == "sgd") weft::optim::SGDRule::check({.lr = o.lr, .momentum = o.momentum});
    if (o.optimizer == "qhm") weft::optim::QHMRule::check({.lr = o.lr, .momentum = o.momentum, .nu = o.nu});
  } catch (const weft::ValueError& e) {
    return e.what();
  }
  return "";
}
}  // namespace

Options parse(int argc, char** argv) {
  Options o;
  examples::Args args(
      "rnn", "trains the word language model, in one process or split over a parameter server and a trainer");
  args.add("mode", o.mode, {"local", "distributed"},
           "one process, or embedding and decoder on a parameter server");
  args.add("data", o.data, "folder with train.txt, valid.txt, test.txt");
  args.add("model", o.model, {"LSTM", "GRU", "RNN_TANH", "RNN_RELU"}, "recurrent layer");
  args.add("emsize", o.emsize, "size of word embeddings");
  args.add("nhid", o.nhid, "hidden units per layer");
  args.add("nlayers", o.nlayers, "layers");
  args.add("dropout", o.dropout, "dropout on embeddings, between layers and on the output");
  args.add("tied", o.tied, "decoder and embedding share one matrix (needs nhid = emsize)");
  args.add("lr", o.lr, "learning rate");
  args.add("clip", o.clip, "largest total gradient norm");
  args.add("optimizer", o.optimizer, {"sgd", "qhm", "adam"}, "update rule");
  args.add("momentum", o.momentum, "momentum of sgd and qhm (qhm: 0.9 unless given)");
  args.add("nu", o.nu, "nu of qhm");
  args.add("epochs", o.epochs, "passes over the training text");
  args.add("max-steps", o.max_steps, "stop after this many steps (0: no limit)");
  args.add("batch-size", o.batch_size, "columns of the training text");
  args.add("bptt", o.bptt, "steps per window");
  args.add("seed", o.seed, "seed of initial values, dropout and sampling");
  args.add("log-interval", o.log_interval, "steps between progress lines");
  args.add("threads", o.threads, "kernel threads (0: all)");
  args.add("device", o.device, {"cpu", "cuda"}, "device of the modules (distributed: of the server's)");
  args.add("place", o.place, "devices by module, as encoder=cuda,decoder=cuda (local mode)");
  args.add("backward", o.backward, {"smart", "fast"}, "how the distributed backward finds its graph");
  args.add("decoder", o.decoder, {"remote-logits", "remote-loss"},
           "the decoder returns logits, or the loss alone");
  args.add("compile", o.compile, "replay the training steps by compile() (local mode on the CPU)");
  args.add("save", o.save, "write the best parameters here (safetensors)");
  args.add("resume", o.resume, "start from these parameters");
  args.add("generate", o.generate, "words to generate at the end");
  args.add("print-losses", o.print_losses, "print the loss of every step with all digits");
  args.add("tutorial", o.tutorial, "the tutorial's toy sizes and data");
  args.add("json", o.json, "write the figures here");
  args.add("snapshot-every", o.snapshot_every, "elastic group: steps between copies of the parameters");
  o.network.add_to(args);
  o.network.add_elastic_to(args);
  args.parse(argc, argv);

  const auto reject = [](const std::string& what) {
    std::fprintf(stderr, "rnn: %s (--help lists the flags)\n", what.c_str());
    std::exit(2);
  };
  if (o.emsize < 1 || o.nhid < 1 || o.nlayers < 1 || o.batch_size < 1 || o.bptt < 1)
    reject("sizes must be at least 1");
  if (!o.network.store.empty() && (o.mode != "distributed" || o.snapshot_every < 1))
    reject("--store needs --mode distributed, and --snapshot-every at least 1");
  if (o.epochs < 1 || o.max_steps < 0 || o.log_interval < 1 || o.generate < 0 || o.threads < 0)
    reject("counts must not be negative, epochs and log-interval at least 1");
  if (o.threads > 4096) reject("--threads must be at most 4096");
  if (!(o.dropout >= 0 && o.dropout < 1)) reject("--dropout must be in [0, 1)");
  if (!(o.lr >= 0) || !(o.clip > 0)) reject("--lr must not be negative and --clip must be positive");
  if (o.optimizer == "qhm" && !args.given("momentum")) o.momentum = 0.9;
  for (const double rate : {o.lr, o.momentum, o.nu})
    if (std::isinf(rate)) reject("--lr, --momentum and --nu must be finite");
  if (const std::string error = rule_error(o); !error.empty()) reject(error);
  if (!o.place.empty() && o.mode != "local") reject("--place needs --mode local");
  if (const std::string error = place_error(o.place); !error.empty()) reject("--place: " + error);
  if (o.compile && (o.mode != "local" || o.device != "cpu" || !o.place.empty()))
    reject("--compile needs --mode local and --device cpu, without --place");
  if (o.tied && o.placed("encoder") != o.placed("decoder"))
    reject("--tied needs encoder and decoder on one device");
  if (o.tutorial) {
    for (const char* size : {"emsize", "nhid", "nlayers", "batch-size", "bptt"})
      if (args.given(size)) reject(std::string("--tutorial has its own --") + size);
    o.emsize = 2, o.nhid = 3, o.nlayers = 4, o.batch_size = 5, o.bptt = 3, o.vocabulary = 10;
    if (!args.given("dropout")) o.dropout = 0.5;
    if (!args.given("lr")) o.lr = 0.05;
    if (!args.given("epochs")) o.epochs = 10;
  }
  if (o.tied && o.nhid != o.emsize)
    reject("--tied needs --nhid equal to --emsize: " + std::to_string(o.nhid) + " and " +
           std::to_string(o.emsize));
  return o;
}

}  // namespace rnn
