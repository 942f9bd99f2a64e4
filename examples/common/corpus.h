// A corpus of three text files with its vocabulary, and the batches of the word language model.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <weft/tensor/tensor.h>

namespace examples {

/// Words in order of first appearance over train, valid, test; every line ends in <eos>.
struct Corpus {
  std::vector<std::string> words;
  std::unordered_map<std::string, int64_t> index;
  std::vector<int64_t> train, valid, test;
  int64_t vocabulary() const { return static_cast<int64_t>(words.size()); }
};

/// Reads DIR/train.txt, valid.txt and test.txt, and checks their lengths for these numbers of columns.
/// Throws: weft::IoError that names a file that is missing, empty, a folder or unreadable. weft::ValueError
/// that names a file that is too short for its columns.
Corpus load_corpus(const std::string& directory, int64_t train_columns, int64_t eval_columns);

/// The ids as `columns` parallel streams, trimmed to a multiple: int64 [steps, columns].
/// Throws: weft::ValueError for fewer than 2 steps.
weft::Tensor batchify(const std::vector<int64_t>& ids, int64_t columns);

/// The inputs, steps [start, start + length), and the targets, shifted by one and flattened.
struct Window {
  weft::Tensor input, target;
};
Window window(const weft::Tensor& data, int64_t start, int64_t bptt);

}  // namespace examples
