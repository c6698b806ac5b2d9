// Memory of the stand-in's devices, and how other processes map it: files without a name.
//
// Invariant: what one process writes, another sees at once. A mapping outlives its exporter, as on a device.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "driver.hpp"

namespace stand_in {

namespace {

constexpr std::size_t page = 4096;

struct Allocation {
    std::size_t bytes = 0;
    int fd = -1;
    std::size_t offset = 0;  // in the file
    Kind kind = Kind::handle;
    std::uint64_t buffer = 0;
};

// What fits into a CUipcMemHandle.
struct Handle {
    int pid;
    int fd;
    std::uint64_t offset;
    std::uint64_t bytes;
    char rest[40];
};
static_assert(sizeof(Handle) == 64);

struct Memory {
    std::mutex mutex;
    int fd = -1;           // of all memory that is exported by a handle
    std::size_t used = 0;  // of this file
    std::uint64_t buffers = 0;
    std::map<std::uint64_t, Allocation> allocations;
    std::map<std::uint64_t, std::size_t> opened;  // by address
    std::map<unsigned long long, int> handles;    // descriptors, by the handle of an allocation
    unsigned long long handle = 0;
};

Memory& memory() {
    static Memory& one = *new Memory;
    return one;
}

std::size_t rounded(std::size_t bytes) { return (bytes + page - 1) / page * page; }

int open_file(std::size_t bytes) {
    const int fd = ::memfd_create("stand-in", MFD_CLOEXEC);
    if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return -1;
    return fd;
}

// Null if it cannot be mapped.
void* map(int fd, std::size_t offset, std::size_t bytes) {
    void* const data =
        ::mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    return data == MAP_FAILED ? nullptr : data;
}

std::map<std::uint64_t, Allocation>::iterator find(std::uint64_t address) {
    auto next = memory().allocations.upper_bound(address);
    if (next == memory().allocations.begin()) return memory().allocations.end();
    --next;
    return address < next->first + next->second.bytes ? next : memory().allocations.end();
}

int memGetAddressRange(std::uint64_t* start, std::size_t* bytes, std::uint64_t address) {
    const Range range = range_of(address, 1);
    if (range.bytes == 0) return 1;
    if (start != nullptr) *start = range.start;
    if (bytes != nullptr) *bytes = range.bytes;
    return 0;
}
int ipcGetMemHandle(Handle* handle, std::uint64_t address) {
    if (std::getenv("STAND_IN_NO_IPC") != nullptr) return 801;  // not supported, as in some containers
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    const auto found = find(address);
    if (found == m.allocations.end() || found->second.kind != Kind::handle) return 1;
    const Allocation& one = found->second;
    *handle = {::getpid(), one.fd, one.offset, one.bytes, {}};
    return 0;
}
int ipcOpenMemHandle(std::uint64_t* address, Handle handle, unsigned) {
    if (handle.pid == ::getpid()) return 201;
    char name[64];
    std::snprintf(name, sizeof(name), "/proc/%d/fd/%d", handle.pid, handle.fd);
    const int fd = ::open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 1;
    void* const data = map(fd, handle.offset, handle.bytes);
    ::close(fd);
    if (data == nullptr) return 2;
    *address = reinterpret_cast<std::uint64_t>(data);
    add_range({*address, handle.bytes, current_device()});
    const std::lock_guard lock(memory().mutex);
    memory().opened[*address] = handle.bytes;
    return 0;
}
int ipcCloseMemHandle(std::uint64_t address) {
    std::size_t bytes = 0;
    {
        const std::lock_guard lock(memory().mutex);
        const auto found = memory().opened.find(address);
        if (found == memory().opened.end()) return 1;
        bytes = found->second;
        memory().opened.erase(found);
    }
    remove_range(address);  // before another thread may get the same address
    ::munmap(reinterpret_cast<void*>(address), rounded(bytes));
    return 0;
}
int memRetainAllocationHandle(unsigned long long* handle, void* address) {
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    const auto found = find(reinterpret_cast<std::uint64_t>(address));
    if (found == m.allocations.end() || found->second.kind != Kind::descriptor) return 1;
    *handle = ++m.handle;
    m.handles[*handle] = ::dup(found->second.fd);
    return 0;
}
int memRelease(unsigned long long handle) {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().handles.find(handle);
    if (found == memory().handles.end()) return 1;
    ::close(found->second);
    memory().handles.erase(found);
    return 0;
}
int memExportToShareableHandle(void* descriptor, unsigned long long handle, int type, unsigned long long) {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().handles.find(handle);
    if (found == memory().handles.end() || type != 1) return 1;
    *static_cast<int*>(descriptor) = ::dup(found->second);
    return 0;
}
int memImportFromShareableHandle(unsigned long long* handle, void* descriptor, int type) {
    const int fd = ::dup(static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor)));
    if (fd < 0 || type != 1) return 1;
    const std::lock_guard lock(memory().mutex);
    *handle = ++memory().handle;
    memory().handles[*handle] = fd;
    return 0;
}
int memAddressReserve(std::uint64_t* address, std::size_t bytes, std::size_t, std::uint64_t,
                      unsigned long long) {
    void* const data =
        ::mmap(nullptr, rounded(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return 2;
    *address = reinterpret_cast<std::uint64_t>(data);
    return 0;
}
int memAddressFree(std::uint64_t address, std::size_t bytes) {
    return ::munmap(reinterpret_cast<void*>(address), rounded(bytes)) == 0 ? 0 : 1;
}
int memMap(std::uint64_t address, std::size_t bytes, std::size_t, unsigned long long handle,
           unsigned long long) {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().handles.find(handle);
    if (found == memory().handles.end()) return 1;
    void* const data = ::mmap(reinterpret_cast<void*>(address), rounded(bytes), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED, found->second, 0);
    return data == MAP_FAILED ? 1 : 0;
}
int memSetAccess(std::uint64_t address, std::size_t bytes, const int* description, std::size_t) {
    add_range({address, bytes, description[1]});
    return 0;
}
int memUnmap(std::uint64_t address, std::size_t) {
    remove_range(address);
    return 0;
}

}  // namespace

void* allocate(std::size_t bytes, Kind kind) {
    Memory& m = memory();
    Allocation one;
    one.bytes = bytes;
    one.kind = kind;
    const std::lock_guard lock(m.mutex);
    if (kind == Kind::descriptor) {
        one.fd = open_file(rounded(bytes));
    } else {
        if (m.fd < 0) m.fd = open_file(0);
        one.fd = m.fd;
        one.offset = m.used;
        if (::ftruncate(m.fd, static_cast<off_t>(m.used + rounded(bytes))) != 0) return nullptr;
        m.used += rounded(bytes);
    }
    if (one.fd < 0) return nullptr;
    void* const data = map(one.fd, one.offset, bytes);
    if (data == nullptr) return nullptr;
    one.buffer = ++m.buffers;
    m.allocations[reinterpret_cast<std::uint64_t>(data)] = one;
    return data;
}

bool deallocate(void* data) {
    Memory& m = memory();
    Allocation one;
    {
        const std::lock_guard lock(m.mutex);
        const auto found = m.allocations.find(reinterpret_cast<std::uint64_t>(data));
        if (found == m.allocations.end()) return false;
        one = found->second;
        m.allocations.erase(found);
    }
    if (one.kind == Kind::descriptor) ::close(one.fd);
    remove_range(reinterpret_cast<std::uint64_t>(data));  // before another thread may get the same address
    ::munmap(data, rounded(one.bytes));
    return true;
}

About about(std::uint64_t address) {
    Memory& m = memory();
    const std::lock_guard lock(m.mutex);
    const auto found = find(address);
    if (found == m.allocations.end()) return {};
    const Allocation& one = found->second;
    return {one.buffer, one.kind == Kind::handle ? 1U : 0U, one.kind == Kind::descriptor ? 1U : 0U};
}

std::size_t opened() {
    const std::lock_guard lock(memory().mutex);
    return memory().opened.size();
}

const Table& memory_functions() {
    static const Table all{
        STAND_IN_ENTRY(cuMemGetAddressRange, memGetAddressRange),
        STAND_IN_ENTRY(cuIpcGetMemHandle, ipcGetMemHandle),
        STAND_IN_ENTRY(cuIpcOpenMemHandle, ipcOpenMemHandle),
        STAND_IN_ENTRY(cuIpcCloseMemHandle, ipcCloseMemHandle),
        STAND_IN_ENTRY(cuMemRetainAllocationHandle, memRetainAllocationHandle),
        STAND_IN_ENTRY(cuMemRelease, memRelease),
        STAND_IN_ENTRY(cuMemExportToShareableHandle, memExportToShareableHandle),
        STAND_IN_ENTRY(cuMemImportFromShareableHandle, memImportFromShareableHandle),
        STAND_IN_ENTRY(cuMemAddressReserve, memAddressReserve),
        STAND_IN_ENTRY(cuMemAddressFree, memAddressFree),
        STAND_IN_ENTRY(cuMemMap, memMap),
        STAND_IN_ENTRY(cuMemSetAccess, memSetAccess),
        STAND_IN_ENTRY(cuMemUnmap, memUnmap),
    };
    return all;
}

}  // namespace stand_in
