// What the files of the stand-in for the CUDA driver have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace stand_in {

using Table = std::map<std::string, void*>;
#define STAND_IN_ENTRY(symbol, function) {#symbol, reinterpret_cast<void*>(&function)}

// --- memory.cpp

// How memory can be exported: by a handle, by a descriptor, or not at all.
enum class Kind { handle, descriptor, none };
// Device memory that other processes can map; null if there is none.
void* allocate(std::size_t bytes, Kind kind);
bool deallocate(void* memory);
// The values of CU_POINTER_ATTRIBUTE_BUFFER_ID, _IS_LEGACY_CUDA_IPC_CAPABLE and _ALLOWED_HANDLE_TYPES.
struct About {
    std::uint64_t buffer = 0;
    unsigned legacy = 0;
    std::uint64_t types = 0;
};
About about(std::uint64_t address);
// How many handles of other processes' memory are open here.
std::size_t opened();
const Table& memory_functions();

// --- kernels.cpp

const Table& kernel_functions();

// --- cuda.cpp

// The stream does that work in its turn. Returns an error of CUDA.
int enqueue(void* stream, std::function<void()> work);
struct Range {
    std::uint64_t start = 0;
    std::size_t bytes = 0;
    int device = 0;  // -1: registered host memory
};
void add_range(const Range& range);
bool remove_range(std::uint64_t start);
// The range that holds these bytes; without bytes if there is none.
Range range_of(std::uint64_t address, std::size_t bytes);
// Whether work in that stream may use this memory: memory of another device needs peer access, which is for
// memory of cuMemAlloc only.
bool may_use(void* stream, std::uint64_t address, std::size_t bytes);
// That of the current context; -1 if there is none.
int current_device();
// CUstreamCaptureMode of the calling thread; returns the mode before.
int exchange_capture_mode(int mode);

}  // namespace stand_in
