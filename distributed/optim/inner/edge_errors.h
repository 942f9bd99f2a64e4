// The errors that rounded gradients still owe (autograd/edge_codec.h), as a part of a checkpoint. An error's
// key names two workers by their places in the set. "@0" is the first owner, and the number after the last
// owner is the caller. All other workers are named by their names. So owners of a resumed run may have other
// names, and all workers other lives.
#pragma once

#include <weft/distributed/autograd/inner/edge_codecs.h>
#include <weft/distributed/optim/owner_optimizer.h>

namespace weft::dist_optim::detail {

/// The lives of a set: its owners in order, then its caller.
std::vector<rpc::Life> members_of(const ShardTerms& terms);
/// This worker's errors, the oldest first: "count" and "<number>/<to>/<maker>/<ordinal>/<slot>". The tensors
/// are shared. Errors of lives that have a successor are left out.
optim::StateDict edge_errors(const std::vector<rpc::Life>& members);
/// The errors of such a state with the lives of now; without those of workers that are not in the group.
/// Throws: ValueError for an entry that is no error.
std::vector<dist_autograd::detail::KeptError> read_edge_errors(const optim::StateDict& state,
                                                               const std::vector<rpc::Life>& members);
/// Gives this worker these errors in place of all others.
void set_edge_errors(std::vector<dist_autograd::detail::KeptError> errors);

}  // namespace weft::dist_optim::detail
