// The part of the CUDA driver's API that this library uses, declared here so that no header of CUDA is needed
// to build it. Names and values are those of NVIDIA's cuda.h; the meaning of each function is described in
// NVIDIA's documentation of the driver API.
//
// Invariant: each function is listed once, with the version of the API in which the wanted form of it
// appeared. The driver is asked for exactly this form, so later drivers cannot change what is called.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives::cuda {

using Result = int;             // CUresult
using DeviceNumber = int;       // CUdevice
using Context = void*;          // CUcontext
using StreamHandle = void*;     // CUstream
using EventHandle = void*;      // CUevent
using Pointer = std::uint64_t;  // CUdeviceptr

struct Uuid {
    char bytes[16];
};

inline constexpr Result success = 0;
inline constexpr Result error_invalid_value = 1;
inline constexpr Result error_out_of_memory = 2;
inline constexpr Result error_not_initialized = 3;
inline constexpr Result error_no_device = 100;
inline constexpr Result error_invalid_device = 101;
inline constexpr Result error_invalid_context = 201;
inline constexpr Result error_devices_unavailable = 46;
inline constexpr Result error_invalid_handle = 400;
inline constexpr Result error_not_ready = 600;
inline constexpr Result error_illegal_address = 700;
inline constexpr Result error_context_is_destroyed = 709;
inline constexpr Result error_stream_capture_unsupported = 900;
inline constexpr Result error_system_not_ready = 802;
inline constexpr Result error_system_driver_mismatch = 803;

// CUdevice_attribute
enum class Attribute : int {
    multiprocessors = 16,
    compute_major = 75,
    compute_minor = 76,
    can_use_host_pointer_for_registered_memory = 91,
};

// CUpointer_attribute
enum class PointerAttribute : int {
    memory_type = 2,
    is_managed = 8,
    device_ordinal = 9,
    range_start = 11,
    range_size = 12,
};

// CUmemorytype, as PointerAttribute::memory_type gives it; 0 if the driver does not know the address.
enum class MemoryType : unsigned { unknown = 0, host = 1, device = 2, array = 3, unified = 4 };

// Handles of streams that need not be created: the stream that waits for all others of its context, and that
// of the calling thread.
inline const StreamHandle legacy_stream = reinterpret_cast<StreamHandle>(1);
inline const StreamHandle per_thread_stream = reinterpret_cast<StreamHandle>(2);

inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned register_portable = 1;
inline constexpr unsigned register_device_map = 2;
inline constexpr unsigned wait_greater_or_equal = 0;

// X(member, symbol, version of the API, parameters)
#define COLLECTIVES_CUDA_FUNCTIONS(X)                                                                    \
    X(get_error_name, cuGetErrorName, 6000, (Result, const char**))                                      \
    X(get_error_string, cuGetErrorString, 6000, (Result, const char**))                                  \
    X(device_get, cuDeviceGet, 2000, (DeviceNumber*, int))                                               \
    X(device_get_count, cuDeviceGetCount, 2000, (int*))                                                  \
    X(device_get_name, cuDeviceGetName, 2000, (char*, int, DeviceNumber))                                \
    X(device_get_uuid, cuDeviceGetUuid, 11040, (Uuid*, DeviceNumber))                                    \
    X(device_get_attribute, cuDeviceGetAttribute, 2000, (int*, int, DeviceNumber))                       \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, 7000, (Context*, DeviceNumber))                  \
    X(primary_context_release, cuDevicePrimaryCtxRelease, 11000, (DeviceNumber))                         \
    X(context_push, cuCtxPushCurrent, 4000, (Context))                                                   \
    X(context_pop, cuCtxPopCurrent, 4000, (Context*))                                                    \
    X(context_get_device, cuCtxGetDevice, 2000, (DeviceNumber*))                                         \
    X(pointer_get_attributes, cuPointerGetAttributes, 7000, (unsigned, int*, void**, Pointer))           \
    X(stream_create, cuStreamCreate, 2000, (StreamHandle*, unsigned))                                    \
    X(stream_destroy, cuStreamDestroy, 4000, (StreamHandle))                                             \
    X(stream_get_context, cuStreamGetCtx, 9020, (StreamHandle, Context*))                                \
    X(stream_is_capturing, cuStreamIsCapturing, 10000, (StreamHandle, int*))                             \
    X(stream_wait_event, cuStreamWaitEvent, 3020, (StreamHandle, EventHandle, unsigned))                 \
    X(stream_write_value, cuStreamWriteValue32, 11070, (StreamHandle, Pointer, std::uint32_t, unsigned)) \
    X(stream_wait_value, cuStreamWaitValue32, 11070, (StreamHandle, Pointer, std::uint32_t, unsigned))   \
    X(event_create, cuEventCreate, 2000, (EventHandle*, unsigned))                                       \
    X(event_record, cuEventRecord, 2000, (EventHandle, StreamHandle))                                    \
    X(event_destroy, cuEventDestroy, 4000, (EventHandle))                                                \
    X(host_register, cuMemHostRegister, 6050, (void*, std::size_t, unsigned))                            \
    X(host_unregister, cuMemHostUnregister, 4000, (void*))                                               \
    X(host_get_device_pointer, cuMemHostGetDevicePointer, 3020, (Pointer*, void*, unsigned))

struct Api {
#define COLLECTIVES_CUDA_MEMBER(member, symbol, version, parameters) Result(*member) parameters = nullptr;
    COLLECTIVES_CUDA_FUNCTIONS(COLLECTIVES_CUDA_MEMBER)
#undef COLLECTIVES_CUDA_MEMBER
};

}  // namespace collectives::cuda
