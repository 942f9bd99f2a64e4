// The launches of a call, by their names in a trace (kernels/cuda/trace.h). So a row of bench_gpu knows which
// kernels it has timed.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>

#include <weft/kernels/cuda/trace.h>
#include <weft/kernels/error.h>
#include <weft/kernels/str.h>

namespace weft::bench {

/// How often each launch or call of a library was issued. Work that was recorded counts as issued.
using Spans = std::map<std::string, int>;

/// The spans of `work`, which runs once. Nullopt, and nothing runs, while another trace is made. Throws: as
/// `work`; IoError if the folder of temporary files takes none.
template <class F> std::optional<Spans> spans_of(const F& work) {
  if (cuda::inner::traces) return std::nullopt;
  std::error_code problem;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(problem);
  if (problem) throw IoError(str("the folder of temporary files: ", problem.message()));
  const std::filesystem::path file = folder / str("weft_bench_", getpid(), ".json");
  cuda::start_trace(file.string());
  try {
    work();
  } catch (...) {
    cuda::start_trace("nvtx");  // drops the spans, so that no file is written
    cuda::finish_trace();
    throw;
  }
  cuda::finish_trace();
  Spans spans;
  const std::string before = "\"name\": \"";
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("{\"ph\": \"X\", \"pid\": 0,")) continue;  // of the host: each span has one
    const size_t from = line.find(before) + before.size();
    ++spans[line.substr(from, line.find("\"}", from) - from)];
  }
  in.close();
  std::filesystem::remove(file, problem);  // one that stays is no failure of the row
  return spans;
}

}  // namespace weft::bench
