// NCCL, opened by the first group with a device. The declarations follow the documentation of its interface,
// so a build needs no header of it. Each function of the table has its member in Library.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

namespace weft::dist::inner::nccl {

/// Status of a call. kInProgress: the library still works on it, and no other call may come before its end.
enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress,
};
enum class Type : int {
  kInt8 = 0,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
};
enum class Op : int { kSum = 0, kProd, kMax, kMin };

/// Names a communicator that is to form; passed by value.
struct UniqueId {
  char internal[128];
};

/// The settings in their oldest form, that of 2.14. A newer library takes its defaults for all later ones.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xCAFEBEEF;
  unsigned int version = 21400;
  int blocking = INT_MIN;  ///< 0: calls return kInProgress instead of waiting for other processes
};
static_assert(sizeof(UniqueId) == 128 && offsetof(Config, blocking) == 16 && sizeof(Config) == 24);

struct Communicator;  // of the library

/// The functions in use. The last argument of the collectives is the stream.
#define WEFT_NCCL_CALLS(ROW)                                                                             \
  ROW(ncclGetVersion, Result(int* version))                                                              \
  ROW(ncclGetErrorString, const char*(Result))                                                           \
  ROW(ncclGetLastError, const char*(Communicator*))                                                      \
  ROW(ncclGetUniqueId, Result(UniqueId*))                                                                \
  ROW(ncclCommInitRankConfig, Result(Communicator** made, int size, UniqueId, int rank, Config*))        \
  ROW(ncclCommGetAsyncError, Result(Communicator*, Result* state))                                       \
  ROW(ncclCommFinalize, Result(Communicator*))                                                           \
  ROW(ncclCommDestroy, Result(Communicator*))                                                            \
  ROW(ncclCommAbort, Result(Communicator*))                                                              \
  ROW(ncclAllReduce, Result(const void* from, void* to, size_t n, Type, Op, Communicator*, void*))       \
  ROW(ncclBroadcast, Result(const void* from, void* to, size_t n, Type, int root, Communicator*, void*)) \
  ROW(ncclAllGather, Result(const void* from, void* to, size_t n, Type, Communicator*, void*))

#define WEFT_NCCL_TYPE(name, ...) using name##_t = __VA_ARGS__;
WEFT_NCCL_CALLS(WEFT_NCCL_TYPE)
#undef WEFT_NCCL_TYPE

struct Library {
#define WEFT_NCCL_MEMBER(name, ...) name##_t* name = nullptr;
  WEFT_NCCL_CALLS(WEFT_NCCL_MEMBER)
#undef WEFT_NCCL_MEMBER
};

/// The environment variable WEFT_NCCL_LIBRARY names the file, which is libnccl.so.2 without it. Throws:
/// DeviceError, at each call, if there is none or if it lacks a function.
const Library& library();
/// Why library() throws; empty if it does not.
const std::string& missing();

}  // namespace weft::dist::inner::nccl
