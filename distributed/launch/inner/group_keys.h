// The keys of a store that belong to a group of workers. membership.cpp describes the keys of an elastic
// group, rendezvous.cpp the keys of a static group. store_names.cpp has the right to change each.
#pragma once

namespace weft::rpc::inner {

inline constexpr char kMembersKey[] = "group/members";
inline constexpr char kIdsKey[] = "group/ids";
inline constexpr char kIdBegin[] = "group/id/";      ///< the worker's name follows
inline constexpr char kLifeBegin[] = "group/life/";  ///< the same
inline constexpr char kStepBegin[] = "step/";        ///< the worker's id and a dot follow
inline constexpr char kStepCommit[] = "commit", kStepAbort[] = "abort";
inline constexpr char kRunKey[] = "run/number";
inline constexpr char kRunBegin[] = "run/";       ///< the run and kReturned follow
inline constexpr char kReturned[] = "returned/";  ///< the rank follows

inline constexpr char kAnnouncedName[] = "init/name/";  ///< of a rendezvous; the worker's name follows
inline constexpr char kAnnounced[] = "init/member/";    ///< the rank follows

}  // namespace weft::rpc::inner
