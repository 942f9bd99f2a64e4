// Reading and batching of a corpus (corpus.h).
#include "corpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <weft/tensor/factories.h>

namespace examples {
namespace {

constexpr int64_t kFewestSteps = 2;  // one input, one target

std::vector<int64_t> read(const std::string& path, Corpus& corpus, int64_t columns) {
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(kind))
    throw weft::IoError("corpus: " + path + " is a folder, not a text file");
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind))
    throw weft::IoError("corpus: " + path + " is not a regular file");  // a pipe may have no writer
  std::ifstream file(path);
  if (!file)
    throw weft::IoError(
        "corpus: cannot open " + path +
        "; run scripts/fetch_corpus.sh or give --data DIR with train.txt, valid.txt, test.txt");
  std::vector<int64_t> ids;
  const auto put = [&](const std::string& word) {
    const auto [at, fresh] = corpus.index.emplace(word, corpus.vocabulary());
    if (fresh) corpus.words.push_back(word);
    ids.push_back(at->second);
  };
  for (std::string line; std::getline(file, line);) {
    std::istringstream parts(line);
    for (std::string word; parts >> word;) put(word);
    put("<eos>");
  }
  if (file.bad())
    throw weft::IoError(weft::str("corpus: reading ", path, " failed after ", ids.size(), " tokens"));
  if (ids.empty()) throw weft::IoError("corpus: " + path + " is empty");
  if (static_cast<int64_t>(ids.size()) / columns < kFewestSteps)
    throw weft::ValueError(weft::str("corpus: ", path, " has ", ids.size(), " tokens, too few for ", columns,
                                     " columns of at least ", kFewestSteps,
                                     " steps; give more text or fewer columns"));
  return ids;
}

}  // namespace

Corpus load_corpus(const std::string& directory, int64_t train_columns, int64_t eval_columns) {
  Corpus corpus;
  corpus.train = read(directory + "/train.txt", corpus, train_columns);
  corpus.valid = read(directory + "/valid.txt", corpus, eval_columns);
  corpus.test = read(directory + "/test.txt", corpus, eval_columns);
  return corpus;
}

weft::Tensor batchify(const std::vector<int64_t>& ids, int64_t columns) {
  const int64_t steps = static_cast<int64_t>(ids.size()) / columns;
  if (steps < kFewestSteps)
    throw weft::ValueError(weft::str("corpus: ", ids.size(), " tokens are too few for ", columns,
                                     " columns of at least ", kFewestSteps, " steps"));
  std::vector<int64_t> cut(static_cast<size_t>(steps * columns));
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t s = 0; s < steps; ++s)
      cut[static_cast<size_t>(s * columns + c)] = ids[static_cast<size_t>(c * steps + s)];
  return weft::from_vector(cut, {steps, columns});
}

Window window(const weft::Tensor& data, int64_t start, int64_t bptt) {
  const int64_t length = std::min(bptt, data.size(0) - 1 - start);
  return {data.narrow(0, start, length), data.narrow(0, start + 1, length).reshape({length * data.size(1)})};
}

}  // namespace examples
