// The parts of the tests with impostors among real processes. Files carry ports and lives between the
// processes. A transport speaks as a member, and a function starts the processes.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/wire/inner/wire_format.h>

#include "mailbox.h"
#include "support/certificates.h"
#include "support/child_environment.h"
#include "support/folder.h"
#include "support/process.h"

namespace weft::rpc {

// ---- files by which the processes of a test exchange ports and lives

inline std::string shared_path(const std::string& name) {
  return str(std::getenv("WEFT_TEST_FOLDER"), "/", name);
}
inline void put_shared(const std::string& name, const std::string& text) {
  std::ofstream(shared_path(name + ".new")) << text;
  std::filesystem::rename(shared_path(name + ".new"), shared_path(name));
}
inline bool has_shared(const std::string& name) { return std::filesystem::exists(shared_path(name)); }
inline std::string await_shared(const std::string& name) {
  const TimePoint end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!has_shared(name)) {
    if (std::chrono::steady_clock::now() > end) throw Timeout("no file " + name);
    usleep(5000);
  }
  std::ostringstream text;
  text << std::ifstream(shared_path(name)).rdbuf();
  return text.str();
}

/// Tells the impostor where worker 0 is, or which life this worker is.
inline void tell_impostor() {
  const auto agent = current_agent();
  std::string lines;
  for (const std::string& a : agent->transport().addresses().addresses) lines += a + "\n";
  put_shared(agent->self().id.value == 0 ? "address" : str("life", agent->self().id),
             agent->self().id.value == 0 ? lines : to_string(agent->life().incarnation));
}

inline PeerAddress address_of_0(const std::string& begin) {
  PeerAddress out;
  std::istringstream lines(await_shared("address"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(begin)) out.addresses.push_back(line);
  return out;
}

// ---- an impostor

/// A message as an agent sends it, with the body that `write` puts into it.
inline std::string raw_message(const Envelope& e, const std::function<void(Encoder&)>& write = {}) {
  Message m;
  {
    Encoder out(m);
    if (write) write(out);
    out.finish();
  }
  seal(m);
  stamp(m, e);
  return m.bytes;
}

/// Speaks to worker 0 as worker 1 with these options; false unless it is refused with `reason`.
inline bool is_refused(GrpcOptions options, PeerAddress to, const std::string& reason) {
  const auto runtime = make_threaded_runtime();
  Mailbox box(*runtime);
  options.id = WorkerId{1};
  options.connect_timeout = std::chrono::seconds(5);
  const auto speaker = make_grpc_transport(runtime, std::move(options), box);
  speaker->add_peer(WorkerId{0}, std::move(to));
  speaker->send(WorkerId{0}, static_cast<uint8_t>(Kind::kGoodbye), raw_message({}));
  speaker->send(WorkerId{0}, static_cast<uint8_t>(Kind::kStatus), raw_message({.floor = uint64_t{1} << 61}));
  speaker->send(WorkerId{0}, static_cast<uint8_t>(Kind::kCall),
                raw_message({.sequence = uint64_t{1} << 61, .floor = uint64_t{1} << 61}));
  const TimePoint end = runtime->now() + std::chrono::minutes(1);
  // each message may have a refusal of its own
  while (box.states(WorkerId{0}).empty() && runtime->now() < end)
    runtime->sleep_for(std::chrono::milliseconds(5));
  speaker->close();
  const std::string states = box.states(WorkerId{0}), told = box.reason(WorkerId{0});
  const bool refused = states.starts_with("rejected") || states.starts_with("unreachable");
  if (refused && states.find("up") == std::string::npos && box.count == 0 &&
      told.find(reason) != std::string::npos)
    return true;
  std::fprintf(stderr, "the impostor was not refused by '%s': '%s', '%s'\n", reason.c_str(), states.c_str(),
               told.c_str());
  return false;
}

inline TlsOptions tls_of(const std::string& worker) {
  const std::string folder = shared_path("certificates/");
  return {.ca_file = folder + "ca.pem",
          .certificate_file = folder + worker + ".pem",
          .key_file = folder + worker + ".key"};
}

// ---- the processes

/// Four processes, with a folder for these files and a private one for sockets.
struct Stage {
  /// `child`: the test that does the job of a process.
  explicit Stage(std::string child) : child_test(std::move(child)) {}
  void play(const std::string& job) const {
    const std::string sockets = folder / "run";
    std::filesystem::create_directory(sockets);
    std::filesystem::permissions(sockets, std::filesystem::perms(0700));
    test::expect_ended(spawn(
        {.world_size = 4,
         .arguments = {str("--gtest_filter=", child_test), "--gtest_brief=1"},
         .own_arguments = false,
         .environment = test::child_environment(
             {{"WEFT_TEST_JOB", job}, {"WEFT_TEST_FOLDER", folder.path}, {"XDG_RUNTIME_DIR", sockets}})}));
  }
  const std::string child_test;
  test::Folder folder;
};

/// The same with certificates for four members and for "other".
inline void play_with_certificates(const std::string& child, const std::string& job) {
#ifdef WEFT_TEST_CERTIFICATES
  const Stage stage(child);
  weft_certs::write_certificates({.folder = stage.folder / "certificates",
                                  .workers = {"worker0", "worker1", "worker2", "worker3", "other"},
                                  .hosts = {"127.0.0.1", "localhost"},
                                  .days = 2});
  stage.play(job);
#else
  GTEST_SKIP() << "no headers of OpenSSL: " << job;
#endif
}

}  // namespace weft::rpc
