// A cluster of three members of etcd on this host in the place of the store (--etcd). Each member is a child
// of the supervisor that becomes the program etcd. One that was killed stays away for a while first.
#pragma once

#include <string>
#include <vector>

#include <weft/distributed/transport/address.h>
#include "options.h"

namespace elastic {

constexpr int kMembers = 3;

/// The ports of a cluster. Nobody else gets them while the object lives.
class EtcdPorts {
 public:
  /// Writes the addresses of the members for each other into the folder of the run. Throws: weft::IoError
  /// when the program etcd is not in PATH.
  explicit EtcdPorts(const std::string& dir);
  /// For WEFT_STORE.
  std::string store() const;

 private:
  std::vector<weft::rpc::ReservedPort> clients_, peers_;
};

/// The longest time for which a killed member stays away, in seconds.
double longest_absence(const Options& options);

/// Turns this process into a member, 0 to kMembers - 1. Throws: weft::IoError when that fails.
[[noreturn]] void become_member(const Options& options, int member);

}  // namespace elastic
