// Certificates for tests of TLS connections, made by the openssl program.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace weft::test {

/// A certificate authority and a certificate for 127.0.0.1 signed by it, as files in a temporary folder. The
/// destructor removes the folder.
class Certificates {
 public:
  explicit Certificates(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("weft_tls_" + std::to_string(getpid()) + "_" + name)) {
    std::filesystem::create_directories(folder_);
    const std::string d = "cd '" + folder_.string() + "' && ";
    const std::string key = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
    std::ofstream(folder_ / "ext") << "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
    made_ = run(d + "openssl req -x509" + key + "-keyout ca.key -out ca.pem -days 2 -subj /CN=authority") &&
            run(d + "openssl req" + key + "-keyout key.pem -out req.pem -subj /CN=worker") &&
            run(d +
                "openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days "
                "2 -extfile ext");
  }
  Certificates(const Certificates&) = delete;
  ~Certificates() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  /// False if the openssl program is missing.
  bool made() const { return made_; }
  std::string ca() const { return folder_ / "ca.pem"; }
  std::string certificate() const { return folder_ / "cert.pem"; }
  std::string key() const { return folder_ / "key.pem"; }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  std::filesystem::path folder_;
  bool made_ = false;
};

}  // namespace weft::test
