// Handshakes of the gRPC transport: which hellos are welcomed, and which ends of an attempt are final. TLS
// 1.3 makes the second question hard. A side whose certificate is refused has already completed the
// handshake. It sees a connection that ends without an error, as after a broken network.
#include <weft/distributed/transport/inner/grpc_peers.h>

#include <algorithm>
#include <initializer_list>

namespace weft::rpc::inner {

namespace {

/// attempts in a row after which an end without a word means that the other side refuses the certificate
constexpr int kSilentEnds = 5;

bool has_one_of(const std::string& reason, std::initializer_list<const char*> texts) {
  for (const char* text : texts)
    if (reason.find(text) != std::string::npos) return true;
  return false;
}
/// gRPC's texts for a certificate that this side does not accept. Trying again cannot help.
bool is_refusal_of_certificates(const std::string& reason) {
  return has_one_of(reason, {"Ssl handshake failed", "SSL_ERROR_SSL", "is not in peer certificate",
                             "Hostname Verification"});
}
/// gRPC's texts for a connection that was made and ended before the other side sent anything. A server of
/// TLS 1.3 ends it so when it refuses the certificate, after this side has done with the handshake.
bool is_silent_end(const std::string& reason) {
  return has_one_of(reason, {"Socket closed", "Connection reset by peer", "Broken pipe", "Unwrap failed"}) &&
         !has_one_of(reason, {"Failed to connect", "andshake"});
}
}  // namespace

bool Admission::is_final(Peer& peer, std::string& reason) const {
  if (!options_.tls) {
    if (!has_one_of(reason, {"http1.x server"})) return false;
    reason = kNeedsTls;
    return true;
  }
  const bool silent = is_silent_end(reason), refused = is_refusal_of_certificates(reason);
  peer.silent_ends = silent ? peer.silent_ends + 1 : 0;
  if (!silent && !refused) return false;
  const std::string own = grpc_.certificate_trouble();
  if (has_one_of(reason, {"wrong version number"})) reason += "; that port does not speak TLS";
  else if (has_one_of(reason, {"handshake failed"}) && !has_one_of(reason, {"alert"}))
    reason += "; the other side's certificate is out of date or not of the authority that this side knows";
  if (silent) reason += "; it ended after the TLS handshake, as for a certificate that it does not accept";
  if (!own.empty()) reason += "; at this side " + own;
  // A peer that was connected has accepted the certificate: the trouble may be of the network.
  return refused || (!peer.was_up && (!own.empty() || peer.silent_ends >= kSilentEnds));
}

/// For good are the refusals that no retry can end, since the other side's agent then counts this worker as
/// lost. A member may be added late, and a port and its cookie may get another process. A life whose number
/// an impostor showed first is the right one all the same: its lease decides.
void Admission::turn_away(Connection& c, const std::string& why, bool for_now) {
  if (c.outgoing) c.reject = why;
  c.later = for_now;
  throw WireError(why);
}

/// Refuses a hello for another worker or life, or of another version. No text reveals a life's number.
void Admission::check_hello(Connection& c, RecordType type, const Hello& hello) const {
  check_proof(c, hello);
  if ((type == RecordType::kWelcome) != c.outgoing)
    turn_away(c, "wire: a hello where a welcome belongs, or the other way round");
  if (hello.version != options_.wire_version) {
    turn_away(c, str("wire version ", hello.version, " from worker ", hello.id, ", worker ", options_.id,
                     " speaks version ", options_.wire_version));
  }
  if (hello.target != options_.id)
    turn_away(c, str("worker ", hello.target, " was expected, this is worker ", options_.id));
  if (hello.target_incarnation.value != 0 && hello.target_incarnation != incarnation_)
    turn_away(c, str("another life of worker ", options_.id, " was expected"));
  if (hello.id == options_.id || hello.id.value < 0 || (c.outgoing && hello.id != c.peer->id))
    turn_away(c, str("worker ", hello.id, " is not who was expected"));
}

/// Refuses a life of a worker that is no member, and one beside a connected other.
void Admission::check_life(Connection& c, const Peer& peer, const Hello& hello) const {
  if (peer.ignored)
    turn_away(c, str("worker ", hello.id, " was removed from the peers of worker ", options_.id));
  const Incarnation expected = peer.address.incarnation;
  const auto& past = peer.past;
  bool other = peer.member && expected.value != 0 && expected != hello.incarnation;
  if (other && std::find(past.begin(), past.end(), hello.incarnation) != past.end())
    turn_away(c, str("worker ", hello.id, " has a successor at worker ", options_.id));
  for (const auto& connected : peer.up) other = other || connected->incarnation != hello.incarnation;
  if (other && c.outgoing) turn_away(c, str("another life of worker ", hello.id, " answered"));
  // a member's certificate has its name; one that is no member keeps the names that it has shown
  for (const auto& connected : peer.up) {
    const PeerProof& shown = connected->proof;
    if (!other && !peer.member && (shown.secure != c.proof.secure || shown.names != c.proof.names))
      turn_away(c, str("this life of worker ", hello.id, " is connected, with another certificate"), true);
  }
  if (other || (!peer.member && !options_.admit_strangers))
    turn_away(c,
              str("worker ", options_.id, " does not count this life of worker ", hello.id,
                  " as a member, or not yet"),
              true);
}

/// Refuses a connection that shows neither a certificate nor this user's folder.
void Admission::check_proof(Connection& c, const Hello& hello) const {
  if (c.outgoing || c.proof.local || c.proof.secure || secret_.empty()) return;
  if (hello.cookie != secret_)
    turn_away(c, "this port hears the processes of its user: the hello has not the cookie of its file", true);
}

/// Refuses a certificate that does not have the worker's name.
void Admission::check_name(Connection& c, const Peer& peer) const {
  const std::string& name = peer.address.name;
  const auto& names = c.proof.names;
  if (!c.proof.secure || !options_.tls || !options_.tls->check_names || name.empty()) return;
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  std::string shown;
  for (const std::string& one : names) shown += (shown.empty() ? "" : ", ") + one;
  turn_away(c, str("the certificate of worker ", peer.id, " is for ", shown.empty() ? "no name" : shown,
                   ", and not for '", name, "'"));
}

/// Refuses a hello without the key that the life has shown before. Members know each other's lives, but each
/// key is known to one peer only.
void Admission::check_key(Connection& c, const Peer& peer, const Hello& hello) const {
  if (peer.shown_by == hello.incarnation && peer.shown_key != hello.key)
    turn_away(c, str("worker ", hello.id, " has shown another key for this life"), true);
}

void Admission::check_peer(Connection& c, const Peer& peer, const Hello& hello) const {
  check_life(c, peer, hello);
  check_name(c, peer);
  check_key(c, peer, hello);
  if (peer.gone) turn_away(c, "the connection before has just ended", true);
}

}  // namespace weft::rpc::inner
