// Certificates for tests of TLS connections, made by the code of weft-certs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#ifdef WEFT_TEST_CERTIFICATES
#include "weft-certs/certificates.h"
#endif

namespace weft::test {

/// A certificate authority and certificates signed by it, as files in a temporary folder. All are for
/// 127.0.0.1 and localhost. The destructor removes the folder.
class Certificates {
 public:
  /// With one certificate, "cert", for the workers of these names.
  explicit Certificates(const std::string& name, const std::vector<std::string>& workers = {})
      : folder_(std::filesystem::temp_directory_path() /
                ("weft_tls_" + std::to_string(getpid()) + "_" + name)) {
    issue("cert", workers);
  }
  Certificates(const Certificates&) = delete;
  ~Certificates() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  /// Writes the certificate <file>.pem and its key, in place of those before. It names `file` and `workers`,
  /// and is valid for two days from now, or for those that begin `begin` days from now.
  void issue(const std::string& file, const std::vector<std::string>& workers = {}, int begin = 0) const {
#ifdef WEFT_TEST_CERTIFICATES
    std::vector<std::string> hosts = {"127.0.0.1", "localhost"};
    hosts.insert(hosts.end(), workers.begin(), workers.end());
    weft_certs::write_certificates(
        {.folder = folder_, .workers = {file}, .hosts = hosts, .days = 2, .begin = begin});
#else
    (void)file, (void)workers, (void)begin;
#endif
  }
  /// False without OpenSSL's headers.
  static bool made() {
#ifdef WEFT_TEST_CERTIFICATES
    return true;
#else
    return false;
#endif
  }
  std::string ca() const { return folder_ / "ca.pem"; }
  std::string certificate(const std::string& file = "cert") const { return folder_ / (file + ".pem"); }
  std::string key_file(const std::string& file = "cert") const { return folder_ / (file + ".key"); }

 private:
  std::filesystem::path folder_;
};

}  // namespace weft::test
