// Encrypted connections with certificates on both sides. The certificates are made by the openssl program; where it is missing, only the
// refusals are checked.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <weft/distributed/grpc_transport.h>

#include "mailbox.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

/// An authority and a certificate for 127.0.0.1 signed by it, as files in a folder that goes with the object.
class Certificates {
 public:
  explicit Certificates(const std::string& name) : folder_(fs::temp_directory_path() / str("weft_tls_", getpid(), "_", name)) {
    fs::create_directories(folder_);
    const std::string d = "cd '" + folder_.string() + "' && ";
    const std::string key = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
    std::ofstream(folder_ / "ext") << "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
    made_ = run(d + "openssl req -x509" + key + "-keyout ca.key -out ca.pem -days 2 -subj /CN=authority") &&
            run(d + "openssl req" + key + "-keyout key.pem -out req.pem -subj /CN=worker") &&
            run(d + "openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 -extfile ext");
  }
  ~Certificates() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  bool made() const { return made_; }
  TlsOptions options() const {
    return {.ca_file = folder_ / "ca.pem", .certificate_file = folder_ / "cert.pem", .key_file = folder_ / "key.pem"};
  }

 private:
  static bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  fs::path folder_;
  bool made_ = false;
};

/// Sends one message from a to b; true if it arrives before `words` are a's view of b.
bool reaches(std::optional<TlsOptions> from, std::optional<TlsOptions> to, Duration patience) {
  auto rt = make_threaded_runtime();
  Mailbox box_a(*rt), box_b(*rt);
  auto a = make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false, .tls = std::move(from), .connect_timeout = patience}, box_a);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .unix_socket = false, .tls = std::move(to)}, box_b);
  a->add_peer(WorkerId{1}, b->addresses());
  a->send(WorkerId{1}, 1, "secret");
  const bool arrived = box_b.wait_for(1, patience * 2);
  a->close();
  b->close();
  return arrived;
}

TEST(Tls, workers_with_certificates_of_one_authority_reach_each_other_and_others_do_not) {
  const Certificates ours("ours"), theirs("theirs");
  if (!ours.made() || !theirs.made()) GTEST_SKIP() << "no openssl program";
  EXPECT_TRUE(reaches(ours.options(), ours.options(), 30s));
  EXPECT_FALSE(reaches(std::nullopt, ours.options(), 300ms)) << "a plain connection to an encrypted port";
  EXPECT_FALSE(reaches(theirs.options(), ours.options(), 300ms)) << "a certificate of another authority";
}

TEST(Tls, an_encrypted_listener_needs_no_consent_beyond_loopback) {
  const Certificates ours("wildcard");
  if (!ours.made()) GTEST_SKIP() << "no openssl program";
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{0}, .listen = "0.0.0.0:0", .tls = ours.options()}, box);
  EXPECT_EQ(t->addresses().addresses.size(), 2u);
  EXPECT_NO_THROW(t->add_peer(WorkerId{1}, {.addresses = {"192.0.2.7:4711"}}));
  t->close();
}

TEST(Tls, missing_parts_are_named) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  const auto text = [&](TlsOptions tls) {
    try {
      make_grpc_transport(rt, {.id = WorkerId{0}, .tls = std::move(tls)}, box);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text({}), "tls: a certificate and its key are needed");
  EXPECT_EQ(text({.certificate = "x", .key = "y"}), "tls: the certificate of the authority (ca) is needed");
  EXPECT_EQ(text({.ca_file = "does-not-exist.pem"}), "tls: cannot read does-not-exist.pem");
}

}  // namespace
}  // namespace weft::rpc
