// The certificates of a group: an authority of its own, and one certificate per worker whose subject
// alternative name is the worker's name. Elliptic curve keys (P-256), made by OpenSSL.
#pragma once

#include <string>
#include <vector>

namespace weft_certs {

/// Certificates to make.
struct Request {
  std::string folder;                ///< made with mode 0700 when it is missing
  std::vector<std::string> workers;  ///< names, as in init_rpc
  std::vector<std::string> hosts;    ///< host names and IP addresses that every certificate has as well
  int days = 30;
  int begin = 0;  ///< days from now at which the workers' certificates become valid; they may be past
};

/// Writes ca.pem and ca.key, unless the folder has both, and <worker>.pem and <worker>.key for each worker.
/// Files have mode 0600 and appear whole, so a running group may read them meanwhile. Throws:
/// weft::ValueError for a bad name, host or number of days; weft::IoError for files and folders; weft::Error
/// of OpenSSL.
void write_certificates(const Request& request);

}  // namespace weft_certs
