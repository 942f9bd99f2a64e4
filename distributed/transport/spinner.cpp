// The default of GrpcOptions::spin. With one processor, a spinning thread would block the thread for which it
// waits.
#include <weft/distributed/transport/inner/spinner.h>

#include <weft/kernels/cpu/limits.h>

namespace weft::rpc::inner {

Duration longest_spin(Duration option) {
  if (option >= Duration::zero()) return option;
  return kernels::usable_cpus() > 1 ? kDefaultSpin : Duration::zero();
}

}  // namespace weft::rpc::inner
