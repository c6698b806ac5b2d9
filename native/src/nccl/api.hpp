// The part of NCCL's interface that this library uses, declared here so that NCCL is not needed to build it.
// Names and values are those of NVIDIA's nccl.h, in which they are described.
//
// Invariant: structures have the form of NCCL 2.18 and say so, which later versions understand.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "cuda/api.hpp"

namespace collectives::nccl {

using Result = int;     // ncclResult_t
using Handle = void*;   // ncclComm_t
using DataType = int;   // ncclDataType_t
using Reduction = int;  // ncclRedOp_t
using Stream = cuda::StreamHandle;

struct UniqueId {
    char internal[128];
};

inline constexpr Result success = 0;
inline constexpr Result unhandled_cuda_error = 1;
inline constexpr Result system_error = 2;
inline constexpr Result internal_error = 3;
inline constexpr Result invalid_argument = 4;
inline constexpr Result invalid_usage = 5;
inline constexpr Result remote_error = 6;
inline constexpr Result in_progress = 7;

// As ncclGetVersion counts, from 2.9 on.
constexpr int version(int major, int minor, int patch = 0) { return major * 10000 + minor * 100 + patch; }
inline constexpr int oldest_version = version(2, 18);

// ncclConfig_t of 2.18
struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = nccl::version(2, 18);
    int blocking = INT_MIN;
    int cga_cluster_size = INT_MIN;
    int min_ctas = INT_MIN;
    int max_ctas = INT_MIN;
    const char* network = nullptr;
    int split_share = INT_MIN;
};
static_assert(sizeof(Config) == 48);

inline constexpr DataType type_int8 = 0;
inline constexpr DataType type_uint8 = 1;
inline constexpr DataType type_int32 = 2;
inline constexpr DataType type_uint32 = 3;
inline constexpr DataType type_int64 = 4;
inline constexpr DataType type_uint64 = 5;
inline constexpr DataType type_float16 = 6;
inline constexpr DataType type_float32 = 7;
inline constexpr DataType type_float64 = 8;
inline constexpr DataType type_bfloat16 = 9;
inline constexpr DataType type_float8_e4m3 = 10;
inline constexpr DataType type_float8_e5m2 = 11;
// Reductions of the two types above: since that version, and on devices of that compute capability.
inline constexpr int version_of_float8 = version(2, 24);
inline constexpr int capability_of_float8 = 90;

inline constexpr Reduction op_sum = 0;
inline constexpr Reduction op_prod = 1;
inline constexpr Reduction op_max = 2;
inline constexpr Reduction op_min = 3;
inline constexpr Reduction op_avg = 4;

// ncclCommMemStat_t: bytes of the device's memory that NCCL counts as a communicator's.
inline constexpr int memory_total = 3;

// X(member, symbol, parameters): what every supported version has
#define COLLECTIVES_NCCL_FUNCTIONS(X)                                                                    \
    X(get_unique_id, ncclGetUniqueId, (UniqueId*))                                                       \
    X(init_rank, ncclCommInitRankConfig, (Handle*, int, UniqueId, int, Config*))                         \
    X(split, ncclCommSplit, (Handle, int, int, Handle*, Config*))                                        \
    X(get_async_error, ncclCommGetAsyncError, (Handle, Result*))                                         \
    X(abort, ncclCommAbort, (Handle))                                                                    \
    X(destroy, ncclCommDestroy, (Handle))                                                                \
    X(group_start, ncclGroupStart, ())                                                                   \
    X(group_end, ncclGroupEnd, ())                                                                       \
    X(all_reduce, ncclAllReduce, (const void*, void*, std::size_t, DataType, Reduction, Handle, Stream)) \
    X(reduce, ncclReduce, (const void*, void*, std::size_t, DataType, Reduction, int, Handle, Stream))   \
    X(broadcast, ncclBroadcast, (const void*, void*, std::size_t, DataType, int, Handle, Stream))        \
    X(all_gather, ncclAllGather, (const void*, void*, std::size_t, DataType, Handle, Stream))            \
    X(reduce_scatter, ncclReduceScatter,                                                                 \
      (const void*, void*, std::size_t, DataType, Reduction, Handle, Stream))                            \
    X(send, ncclSend, (const void*, std::size_t, DataType, int, Handle, Stream))                         \
    X(recv, ncclRecv, (void*, std::size_t, DataType, int, Handle, Stream))

// What only some versions have: null if this one does not.
#define COLLECTIVES_NCCL_FEATURES(X)                                                         \
    X(revoke, ncclCommRevoke, (Handle, int))                                                 \
    X(memory_stats, ncclCommMemStats, (Handle, int, std::uint64_t*))                         \
    X(all_to_all, ncclAlltoAll, (const void*, void*, std::size_t, DataType, Handle, Stream)) \
    X(gather, ncclGather, (const void*, void*, std::size_t, DataType, int, Handle, Stream))  \
    X(scatter, ncclScatter, (const void*, void*, std::size_t, DataType, int, Handle, Stream))

struct Api {
    Result (*get_version)(int*) = nullptr;
    const char* (*get_error_string)(Result) = nullptr;
    const char* (*get_last_error)(Handle) = nullptr;
#define COLLECTIVES_NCCL_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
    COLLECTIVES_NCCL_FUNCTIONS(COLLECTIVES_NCCL_MEMBER)
    COLLECTIVES_NCCL_FEATURES(COLLECTIVES_NCCL_MEMBER)
#undef COLLECTIVES_NCCL_MEMBER
};

}  // namespace collectives::nccl
