// A training that outlives its processes. The program starts a store, a parameter server and a trainer as an
// elastic group. It kills some of them at random moments (--kills, --stops) and starts them again. The
// training goes on from its checkpoint. The program fails unless its last loss is that of the same training
// in one process, the workers keep nothing, and every loss of a worker was reported in time.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/launch/wait_signal.h>
#include <weft/distributed/transport/address.h>
#include "../common/args.h"
#include "../common/report.h"
#include "etcd.h"
#include "supervisor.h"
#include "training.h"

namespace elastic {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

/// The latest reports that the program takes, in ms. The group promises to notice a death within a lease, and
/// it loses a worker that was stopped after a lease of silence. The rest is a margin for a busy machine.
double latest_report_of_death(const Options& o) { return 1000 * std::max(1.0, o.lease); }
double latest_report_of_stop(const Options& o) { return 1000 * std::max(o.lease + 1, 2 * o.lease); }

/// True if the longest time is below the limit; else it says so.
bool in_time(const char* of, const std::vector<double>& ms, double limit) {
  if (largest(ms) <= limit) return true;
  std::printf("a report of a %s came after %.1f ms, later than %.1f ms\n", of, largest(ms), limit);
  return false;
}

/// The folder of a run: the one given, or one of its own that is removed at the end.
struct RunFolder {
  explicit RunFolder(std::string& dir) : own(dir.empty()) {
    if (own) {
      std::string name = (std::filesystem::temp_directory_path() / "weft-elastic-XXXXXX").string();
      if (!mkdtemp(name.data())) throw weft::IoError("cannot make a folder below " + name);
      dir = name;
    } else if (!std::filesystem::is_directory(dir) && mkdir(dir.c_str(), 0700) != 0) {
      throw weft::IoError("cannot make the folder " + dir);
    } else if (std::filesystem::exists(dir + "/step")) {
      throw weft::IoError("the folder " + dir + " has files of another run");
    }
    path = dir;
  }
  RunFolder(const RunFolder&) = delete;
  ~RunFolder() {
    std::error_code ignored;
    if (own) std::filesystem::remove_all(path, ignored);
  }
  bool own;
  std::string path;
};

int supervised(Options o) {
  examples::catch_interrupt();
  examples::check_outputs({o.json});
  const RunFolder folder(o.dir);
  const weft::rpc::ReservedPort port;
  std::optional<EtcdPorts> cluster;
  if (o.etcd) cluster.emplace(o.dir);
  o.store = cluster ? cluster->store() : weft::str("127.0.0.1:", port.port());
  const Outcome r = supervise(o);
  if (examples::interrupted()) return std::printf("interrupted\n"), 1;
  const double expected = train_undisturbed(o);
  const bool same = r.result.loss == expected && r.result.kept == 0;
  std::printf(
      "reports of deaths: %zu, median %.1f ms, longest %.1f ms; pauses: median %.2f s, longest %.2f s\n",
      r.report_ms.size(), median(r.report_ms), largest(r.report_ms), median(r.pause_s), largest(r.pause_s));
  if (o.stops > 0)
    std::printf("reports of stops for 2 leases: %zu, median %.1f ms, longest %.1f ms\n",
                r.stop_report_ms.size(), median(r.stop_report_ms), largest(r.stop_report_ms));
  if (r.unreported > 0)
    std::printf("losses of a worker that nobody reported: %lld\n", static_cast<long long>(r.unreported));
  const bool deaths_in_time = in_time("death", r.report_ms, latest_report_of_death(o));
  const bool stops_in_time = in_time("stop for 2 leases", r.stop_report_ms, latest_report_of_stop(o));
  examples::Figures figures;
  figures.set("steps", o.steps);
  figures.set("kills", r.kills);
  figures.set("stops", r.stops);
  for (const auto& [role, count] : r.by_role) figures.set("struck_" + role, count);
  figures.set("restarts", r.restarts);
  figures.set("kept_at_end", r.result.kept);
  figures.set("report_ms", r.report_ms);
  figures.set("stop_report_ms", r.stop_report_ms);
  figures.set("unreported", r.unreported);
  figures.set("pause_s", r.pause_s);
  figures.set("loss_last", r.result.loss);
  figures.set("matches undisturbed", examples::yes_no(same));
  std::printf(
      "elastic: steps=%lld kills=%lld stops=%lld restarts=%lld loss_last=%.9f matches undisturbed: %s\n",
      static_cast<long long>(o.steps), static_cast<long long>(r.kills), static_cast<long long>(r.stops),
      static_cast<long long>(r.restarts), r.result.loss, examples::yes_no(same).c_str());
  std::fflush(stdout);
  figures.write(o.json);
  return same && r.unreported == 0 && deaths_in_time && stops_in_time ? 0 : 1;
}

}  // namespace
}  // namespace elastic

int main(int argc, char** argv) {
  const weft::rpc::WaitSignal waits;
  elastic::Options o;
  examples::Args args("elastic", "a training that goes on when its processes are killed");
  args.add("steps", o.steps, "training steps");
  args.add("save-every", o.save_every, "steps between checkpoints");
  args.add("kills", o.kills, "processes to kill at random moments");
  args.add("stops", o.stops, "processes to stop for half of a lease and for two leases in turn");
  args.add("victims", o.victims, "the roles to strike: ps, trainer, store, with commas");
  args.add("etcd", o.etcd, "three members of etcd are the store; the victim `store` is one of them");
  args.add("lease", o.lease, "seconds after which a silent worker is lost");
  args.add("seed", o.seed, "seed of initial values, data, victims and moments");
  args.add("dir", o.dir, "folder of checkpoint and log; empty: a temporary one");
  args.add("json", o.json, "write the figures here");
  args.require([&]() -> std::string {
    if (o.steps < 1 || o.save_every < 1 || o.kills < 0 || o.stops < 0) return "counts must not be negative";
    if (!(o.lease >= 0.2 && o.lease <= 3600)) return "--lease must be 0.2 to 3600";
    for (size_t from = 0; from <= o.victims.size();) {
      const size_t end = std::min(o.victims.find(',', from), o.victims.size());
      const std::string role = o.victims.substr(from, end - from);
      if (role != "ps" && role != "trainer" && role != "store")
        return "--victims: unknown role '" + role + "'";
      from = end + 1;
    }
    return "";
  });
  args.parse(argc, argv);
  return examples::guarded("elastic", [&] {
    const int rank = weft::rpc::spawned_rank().value_or(-1);
    if (rank < 0) return elastic::supervised(o);
    const std::string role = elastic::roles(o).at(static_cast<size_t>(rank));
    if (role == "store") return elastic::serve_store(o);
    if (role == "ps") return elastic::serve_parameters(o);
    if (role == "trainer") return elastic::train(o);
    elastic::become_member(o, rank);
  });
}
