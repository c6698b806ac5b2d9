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
inline constexpr Result error_peer_access_already_enabled = 704;
inline constexpr Result error_no_binary = 209;
inline constexpr Result error_not_ready = 600;
inline constexpr Result error_illegal_address = 700;
inline constexpr Result error_context_is_destroyed = 709;
inline constexpr Result error_stream_capture_unsupported = 900;
inline constexpr Result error_stream_capture_implicit = 906;
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
    buffer_id = 7,
    is_managed = 8,
    device_ordinal = 9,
    has_legacy_ipc = 10,
    range_start = 11,
    range_size = 12,
    allowed_handle_types = 14,
};

// CUmemorytype, as PointerAttribute::memory_type gives it; 0 if the driver does not know the address.
enum class MemoryType : unsigned { unknown = 0, host = 1, device = 2, array = 3, unified = 4 };

// Handles of streams that need not be created: the stream that waits for all others of its context, and that
// of the calling thread.
inline const StreamHandle legacy_stream = reinterpret_cast<StreamHandle>(1);
inline const StreamHandle per_thread_stream = reinterpret_cast<StreamHandle>(2);

// CUstreamCaptureStatus
inline constexpr int capture_none = 0;
inline constexpr int capture_invalidated = 2;

inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned register_portable = 1;
inline constexpr unsigned register_device_map = 2;
inline constexpr unsigned wait_greater_or_equal = 0;
inline constexpr unsigned wait_equal = 1;
inline constexpr int capture_relaxed = 2;  // CUstreamCaptureMode

// CUipcMemHandle
struct IpcHandle {
    char bytes[64];
};
inline constexpr unsigned ipc_lazy_peer_access = 1;

using ModuleHandle = void*;                   // CUmodule
using FunctionHandle = void*;                 // CUfunction
using AllocationHandle = unsigned long long;  // CUmemGenericAllocationHandle
inline constexpr int handle_descriptor = 1;   // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int location_device = 1;     // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int access_read_write = 3;   // CU_MEM_ACCESS_FLAGS_PROT_READWRITE

// CUmemAccessDesc
struct AccessDescription {
    int location_type;
    int location_id;
    int flags;
};

// X(member, symbol, version of the API, parameters)
#define COLLECTIVES_CUDA_FUNCTIONS(X)                                                                      \
    X(get_error_name, cuGetErrorName, 6000, (Result, const char**))                                        \
    X(get_error_string, cuGetErrorString, 6000, (Result, const char**))                                    \
    X(device_get, cuDeviceGet, 2000, (DeviceNumber*, int))                                                 \
    X(device_get_count, cuDeviceGetCount, 2000, (int*))                                                    \
    X(device_get_name, cuDeviceGetName, 2000, (char*, int, DeviceNumber))                                  \
    X(device_get_uuid, cuDeviceGetUuid, 11040, (Uuid*, DeviceNumber))                                      \
    X(device_get_attribute, cuDeviceGetAttribute, 2000, (int*, int, DeviceNumber))                         \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, 7000, (Context*, DeviceNumber))                    \
    X(primary_context_release, cuDevicePrimaryCtxRelease, 11000, (DeviceNumber))                           \
    X(context_push, cuCtxPushCurrent, 4000, (Context))                                                     \
    X(context_pop, cuCtxPopCurrent, 4000, (Context*))                                                      \
    X(context_get_device, cuCtxGetDevice, 2000, (DeviceNumber*))                                           \
    X(pointer_get_attributes, cuPointerGetAttributes, 7000, (unsigned, int*, void**, Pointer))             \
    X(stream_create, cuStreamCreate, 2000, (StreamHandle*, unsigned))                                      \
    X(stream_destroy, cuStreamDestroy, 4000, (StreamHandle))                                               \
    X(stream_get_context, cuStreamGetCtx, 9020, (StreamHandle, Context*))                                  \
    X(stream_is_capturing, cuStreamIsCapturing, 10000, (StreamHandle, int*))                               \
    X(stream_wait_event, cuStreamWaitEvent, 3020, (StreamHandle, EventHandle, unsigned))                   \
    X(stream_write_value, cuStreamWriteValue32, 11070, (StreamHandle, Pointer, std::uint32_t, unsigned))   \
    X(stream_wait_value, cuStreamWaitValue32, 11070, (StreamHandle, Pointer, std::uint32_t, unsigned))     \
    X(event_create, cuEventCreate, 2000, (EventHandle*, unsigned))                                         \
    X(event_record, cuEventRecord, 2000, (EventHandle, StreamHandle))                                      \
    X(event_destroy, cuEventDestroy, 4000, (EventHandle))                                                  \
    X(host_register, cuMemHostRegister, 6050, (void*, std::size_t, unsigned))                              \
    X(host_unregister, cuMemHostUnregister, 4000, (void*))                                                 \
    X(host_get_device_pointer, cuMemHostGetDevicePointer, 3020, (Pointer*, void*, unsigned))               \
    X(memory_allocate, cuMemAlloc, 3020, (Pointer*, std::size_t))                                          \
    X(memory_info, cuMemGetInfo, 3020, (std::size_t*, std::size_t*))                                       \
    X(memory_free, cuMemFree, 3020, (Pointer))                                                             \
    X(memory_set, cuMemsetD32Async, 3020, (Pointer, unsigned, std::size_t, StreamHandle))                  \
    X(memory_copy, cuMemcpyAsync, 4000, (Pointer, Pointer, std::size_t, StreamHandle))                     \
    X(memory_range, cuMemGetAddressRange, 3020, (Pointer*, std::size_t*, Pointer))                         \
    X(can_access_peer, cuDeviceCanAccessPeer, 4000, (int*, DeviceNumber, DeviceNumber))                    \
    X(enable_peer_access, cuCtxEnablePeerAccess, 4000, (Context, unsigned))                                \
    X(ipc_get_handle, cuIpcGetMemHandle, 4010, (IpcHandle*, Pointer))                                      \
    X(ipc_open_handle, cuIpcOpenMemHandle, 11000, (Pointer*, IpcHandle, unsigned))                         \
    X(ipc_close_handle, cuIpcCloseMemHandle, 4010, (Pointer))                                              \
    X(retain_allocation, cuMemRetainAllocationHandle, 11000, (AllocationHandle*, void*))                   \
    X(release_allocation, cuMemRelease, 10020, (AllocationHandle))                                         \
    X(export_allocation, cuMemExportToShareableHandle, 10020,                                              \
      (void*, AllocationHandle, int, unsigned long long))                                                  \
    X(import_allocation, cuMemImportFromShareableHandle, 10020, (AllocationHandle*, void*, int))           \
    X(reserve_addresses, cuMemAddressReserve, 10020,                                                       \
      (Pointer*, std::size_t, std::size_t, Pointer, unsigned long long))                                   \
    X(free_addresses, cuMemAddressFree, 10020, (Pointer, std::size_t))                                     \
    X(map_allocation, cuMemMap, 10020,                                                                     \
      (Pointer, std::size_t, std::size_t, AllocationHandle, unsigned long long))                           \
    X(unmap_allocation, cuMemUnmap, 10020, (Pointer, std::size_t))                                         \
    X(set_access, cuMemSetAccess, 10020, (Pointer, std::size_t, const AccessDescription*, std::size_t))    \
    X(module_load, cuModuleLoadData, 2010, (ModuleHandle*, const void*))                                   \
    X(module_unload, cuModuleUnload, 2000, (ModuleHandle))                                                 \
    X(module_get_function, cuModuleGetFunction, 2000, (FunctionHandle*, ModuleHandle, const char*))        \
    X(launch_kernel, cuLaunchKernel, 4000,                                                                 \
      (FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle, \
       void**, void**))                                                                                    \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int*))

struct Api {
#define COLLECTIVES_CUDA_MEMBER(member, symbol, version, parameters) Result(*member) parameters = nullptr;
    COLLECTIVES_CUDA_FUNCTIONS(COLLECTIVES_CUDA_MEMBER)
#undef COLLECTIVES_CUDA_MEMBER
};

}  // namespace collectives::cuda
