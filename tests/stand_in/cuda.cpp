// A stand-in for the CUDA driver, for tests on machines without a GPU: the entry points that this library
// uses, on host memory. It shows order, errors and what is left behind, and nothing about a device.
//
// Invariant: a stream does its work in order, on a thread of its own, after the call that gave it has
// returned. Addresses that were not allocated or registered here are refused, as are streams that do not
// exist.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int stand_in_end_captures();

namespace {

using Work = std::function<void()>;

int number(const char* variable, int usual) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? usual : std::atoi(text);
}

struct Context {
    int device = 0;
    int retained = 0;
};

class Stream {
  public:
    explicit Stream(Context* context) : context_(context), thread_([this] { run(); }) {}
    ~Stream() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
            changed_.notify_all();
        }
        thread_.join();
    }
    void add(Work work) {
        const std::lock_guard lock(mutex_);
        if (capture != 0) {
            graph_.push_back(std::move(work));
            return;
        }
        work_.push_back(std::move(work));
        changed_.notify_all();
    }
    void synchronize() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return work_.empty() && !busy_; });
    }
    Context* context() const { return context_; }
    // What is put into the stream from now on becomes a new graph.
    void begin_capture() {
        const std::lock_guard lock(mutex_);
        graph_.clear();
        capture = 1;
    }
    void forget() {
        std::vector<Work> graph;  // freed without the lock
        const std::lock_guard lock(mutex_);
        graph.swap(graph_);
    }
    // The graph that was captured last, once more.
    void launch() {
        const std::lock_guard lock(mutex_);
        work_.insert(work_.end(), graph_.begin(), graph_.end());
        changed_.notify_all();
    }
    std::atomic<int> capture{0};  // CUstreamCaptureStatus

  private:
    void run() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
            if (work_.empty()) return;
            const Work work = std::move(work_.front());
            work_.pop_front();
            busy_ = true;
            lock.unlock();
            work();
            lock.lock();
            busy_ = false;
            changed_.notify_all();
        }
    }

    Context* context_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> work_;
    std::vector<Work> graph_;
    bool busy_ = false;
    bool stop_ = false;
    std::thread thread_;
};

struct Event {
    std::shared_ptr<std::atomic<bool>> done;
};

struct Range {
    std::size_t bytes;
    int device;  // -1: registered host memory
};

struct State {
    std::mutex mutex;
    bool initialised = false;
    std::vector<Context> contexts =
        std::vector<Context>(static_cast<std::size_t>(number("STAND_IN_DEVICES", 8)));
    std::set<Stream*> streams;
    std::map<int, Stream*> defaults;  // by device
    std::map<std::uint64_t, Range> memory;
    std::set<std::pair<int, int>> peers;  // (device, the other one whose memory it may use by its address)
};

State& state() {
    static State* const one = new State;  // streams may run until the process ends
    return *one;
}

thread_local std::vector<Context*> current;
thread_local int capture_mode = 0;  // CUstreamCaptureMode of the thread: global, until it says otherwise

// Null for a handle that is no stream.
Stream* find_stream(void* handle) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
        if (current.empty()) return nullptr;
        Stream*& usual = s.defaults[current.back()->device];
        if (usual == nullptr) usual = new Stream(current.back());
        return usual;
    }
    const auto found = s.streams.find(static_cast<Stream*>(handle));
    if (found != s.streams.end()) return *found;
    for (const auto& [device, usual] : s.defaults) {
        if (usual == handle) return usual;
    }
    return nullptr;
}

// The allocation or registration that holds these bytes; null if there is none.
const std::pair<const std::uint64_t, Range>* find_range(std::uint64_t address, std::size_t bytes) {
    State& s = state();
    auto next = s.memory.upper_bound(address);
    if (next == s.memory.begin()) return nullptr;
    --next;
    return address + bytes <= next->first + next->second.bytes ? &*next : nullptr;
}

int cuDriverVersion(int* version) {
    *version = number("STAND_IN_CUDA", 13000);
    return 0;
}
int getErrorName(int code, const char** name) {
    *name = code == 400 ? "CUDA_ERROR_INVALID_HANDLE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return 0;
}
int getErrorString(int, const char** text) {
    *text = "said by the stand-in";
    return 0;
}
int deviceGet(int* handle, int ordinal) {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= state().contexts.size()) return 101;
    *handle = ordinal;
    return 0;
}
int deviceGetCount(int* count) {
    *count = static_cast<int>(state().contexts.size());
    return 0;
}
int deviceGetName(char* name, int length, int device) {
    std::snprintf(name, static_cast<std::size_t>(length), "stand-in %d", device);
    return 0;
}
int deviceGetUuid(char* uuid, int device) {
    std::memset(uuid, 0, 16);
    std::snprintf(uuid, 16, "stand-in-%d", device);
    return 0;
}
int deviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 16 ? 4 : attribute == 75 ? 9 : 0;
    return 0;
}
int primaryCtxRetain(void** context, int device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Context& one = s.contexts[static_cast<std::size_t>(device)];
    one.device = device;
    ++one.retained;
    *context = &one;
    return 0;
}
int primaryCtxRelease(int device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return --s.contexts[static_cast<std::size_t>(device)].retained < 0 ? 201 : 0;
}
int ctxPush(void* context) {
    current.push_back(static_cast<Context*>(context));
    return 0;
}
int ctxPop(void** context) {
    if (current.empty()) return 201;
    *context = current.back();
    current.pop_back();
    return 0;
}
int ctxGetDevice(int* device) {
    if (current.empty()) return 201;
    *device = current.back()->device;
    return 0;
}
int pointerGetAttributes(unsigned count, int* which, void** values, std::uint64_t address) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto* const found = find_range(address, 1);
    for (unsigned i = 0; i < count; ++i) {
        const bool known = found != nullptr;
        const int device = known ? found->second.device : 0;
        switch (which[i]) {
            case 2:
                *static_cast<unsigned*>(values[i]) = !known ? 0 : device < 0 ? 1 : 2;
                break;
            case 8:
                *static_cast<unsigned*>(values[i]) = 0;
                break;
            case 9:
                *static_cast<int*>(values[i]) = device < 0 ? 0 : device;
                break;
            case 11:
                *static_cast<std::uint64_t*>(values[i]) = known ? found->first : 0;
                break;
            case 12:
                *static_cast<std::size_t*>(values[i]) = known ? found->second.bytes : 0;
                break;
            case 7:
                *static_cast<std::uint64_t*>(values[i]) = stand_in::about(address).buffer;
                break;
            case 10:
                *static_cast<unsigned*>(values[i]) = stand_in::about(address).legacy;
                break;
            case 14:
                *static_cast<std::uint64_t*>(values[i]) = stand_in::about(address).types;
                break;
            default:
                return 1;
        }
    }
    return 0;
}
int streamCreate(void** stream, unsigned) {
    if (current.empty()) return 201;
    auto* const made = new Stream(current.back());
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.streams.insert(made);
    *stream = made;
    return 0;
}
int streamDestroy(void* stream) {
    State& s = state();
    {
        const std::lock_guard lock(s.mutex);
        if (s.streams.erase(static_cast<Stream*>(stream)) == 0) return 400;
    }
    delete static_cast<Stream*>(stream);  // does what is left in it
    return 0;
}
int streamGetCtx(void* stream, void** context) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    *context = found->context();
    return 0;
}
int streamIsCapturing(void* stream, int* status) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    *status = found->capture;
    return 0;
}
int streamWaitEvent(void* stream, void* event, unsigned) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    const auto done = static_cast<Event*>(event)->done;
    if (done == nullptr) return 0;
    found->add([done] {
        while (!done->load()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    return 0;
}
bool is_reachable(std::uint64_t address) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return find_range(address, 4) != nullptr;
}
int streamWriteValue(void* stream, std::uint64_t address, std::uint32_t value, unsigned) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    if (!is_reachable(address)) return 1;
    if (!stand_in::may_use(stream, address, 4)) return 700;
    found->add([address, value] { reinterpret_cast<std::atomic<std::uint32_t>*>(address)->store(value); });
    return 0;
}
// STAND_IN_DROP_WAITS: waits for device memory that the main thread ("main") or others ("other") put into
// streams are left out, for tests that show that they are needed.
bool is_dropped(std::uint64_t address) {
    static const char* const dropped = std::getenv("STAND_IN_DROP_WAITS");
    if (dropped == nullptr || stand_in::range_of(address, 4).device < 0) return false;
    return (::gettid() == ::getpid()) == (std::strcmp(dropped, "main") == 0);
}
int streamWaitValue(void* stream, std::uint64_t address, std::uint32_t value, unsigned flags) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    if (!is_reachable(address)) return 1;
    if (!stand_in::may_use(stream, address, 4)) return 700;
    if (is_dropped(address)) return 0;
    const bool is_equal = flags == 1;
    found->add([address, value, is_equal] {
        auto* const word = reinterpret_cast<std::atomic<std::uint32_t>*>(address);
        while (is_equal ? word->load() != value : static_cast<std::int32_t>(word->load() - value) < 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    });
    return 0;
}
int eventCreate(void** event, unsigned) {
    *event = new Event;
    return 0;
}
int eventRecord(void* event, void* stream) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    auto done = std::make_shared<std::atomic<bool>>(false);
    static_cast<Event*>(event)->done = done;
    found->add([done] { done->store(true); });
    return 0;
}
int eventDestroy(void* event) {
    delete static_cast<Event*>(event);
    return 0;
}
// As in the driver, a call that a graph cannot contain ends the captures of all threads, unless the calling
// thread has said that it is not one of them.
int unsafe_in_capture() { return capture_mode != 2 && stand_in_end_captures() > 0 ? 900 : 0; }

int hostRegister(void* data, std::size_t bytes, unsigned) {
    if (bytes > static_cast<std::size_t>(number("STAND_IN_MOST_PINNED_MIB", 65536)) << 20) return 2;
    if (const int refused = unsafe_in_capture(); refused != 0) return refused;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto address = reinterpret_cast<std::uint64_t>(data);
    if (find_range(address, 1) != nullptr) return 712;
    s.memory[address] = {bytes, -1};
    return 0;
}
int hostUnregister(void* data) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.memory.erase(reinterpret_cast<std::uint64_t>(data)) == 0 ? 713 : 0;
}
int hostGetDevicePointer(std::uint64_t* pointer, void* data, unsigned) {
    *pointer = reinterpret_cast<std::uint64_t>(data);
    return 0;
}
int memGetInfo(std::size_t* free, std::size_t* all) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    *all = std::size_t{80} << 30;
    *free = *all;
    for (const auto& [address, range] : s.memory) *free -= range.device >= 0 ? range.bytes : 0;
    return 0;
}
int allocate(std::uint64_t* pointer, std::size_t bytes, stand_in::Kind kind) {
    if (current.empty()) return 201;
    if (const int refused = unsafe_in_capture(); refused != 0) return refused;
    if (bytes > static_cast<std::size_t>(number("STAND_IN_MOST_MIB", 65536)) << 20) return 2;
    void* const data = stand_in::allocate(bytes, kind);
    if (data == nullptr) return 2;
    *pointer = reinterpret_cast<std::uint64_t>(data);
    stand_in::add_range({*pointer, bytes, current.back()->device});
    return 0;
}
int memAlloc(std::uint64_t* pointer, std::size_t bytes) {
    return allocate(pointer, bytes, stand_in::Kind::handle);
}
int memFree(std::uint64_t pointer) { return stand_in::deallocate(reinterpret_cast<void*>(pointer)) ? 0 : 1; }
int memsetD32Async(std::uint64_t pointer, unsigned value, std::size_t count, void* stream) {
    if (stand_in::range_of(pointer, 4 * count).bytes == 0) return 1;
    return stand_in::enqueue(stream, [=] {
        auto* const words = reinterpret_cast<unsigned*>(pointer);
        std::fill(words, words + count, value);
    });
}
int memcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
    return stand_in::enqueue(stream, [=] {
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    });
}
int deviceCanAccessPeer(int* can, int, int) {
    *can = number("STAND_IN_PEERS", 1);
    return 0;
}
int ctxEnablePeerAccess(void* other, unsigned) {
    if (current.empty()) return 201;
    if (number("STAND_IN_PEERS", 1) == 0) return 217;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.peers.insert({current.back()->device, static_cast<Context*>(other)->device}).second ? 0 : 704;
}

const std::map<std::string, void*>& functions() {
#define ENTRY(symbol, function)                     \
    {                                               \
        #symbol, reinterpret_cast<void*>(&function) \
    }
    static const std::map<std::string, void*> all = [] {
        std::map<std::string, void*> own{
            ENTRY(cuGetErrorName, getErrorName),
            ENTRY(cuGetErrorString, getErrorString),
            ENTRY(cuDeviceGet, deviceGet),
            ENTRY(cuDeviceGetCount, deviceGetCount),
            ENTRY(cuDeviceGetName, deviceGetName),
            ENTRY(cuDeviceGetUuid, deviceGetUuid),
            ENTRY(cuDeviceGetAttribute, deviceGetAttribute),
            ENTRY(cuDevicePrimaryCtxRetain, primaryCtxRetain),
            ENTRY(cuDevicePrimaryCtxRelease, primaryCtxRelease),
            ENTRY(cuCtxPushCurrent, ctxPush),
            ENTRY(cuCtxPopCurrent, ctxPop),
            ENTRY(cuCtxGetDevice, ctxGetDevice),
            ENTRY(cuPointerGetAttributes, pointerGetAttributes),
            ENTRY(cuStreamCreate, streamCreate),
            ENTRY(cuStreamDestroy, streamDestroy),
            ENTRY(cuStreamGetCtx, streamGetCtx),
            ENTRY(cuStreamIsCapturing, streamIsCapturing),
            ENTRY(cuStreamWaitEvent, streamWaitEvent),
            ENTRY(cuStreamWriteValue32, streamWriteValue),
            ENTRY(cuStreamWaitValue32, streamWaitValue),
            ENTRY(cuEventCreate, eventCreate),
            ENTRY(cuEventRecord, eventRecord),
            ENTRY(cuEventDestroy, eventDestroy),
            ENTRY(cuMemHostRegister, hostRegister),
            ENTRY(cuMemHostUnregister, hostUnregister),
            ENTRY(cuMemHostGetDevicePointer, hostGetDevicePointer),
            ENTRY(cuMemGetInfo, memGetInfo),
            ENTRY(cuMemAlloc, memAlloc),
            ENTRY(cuMemFree, memFree),
            ENTRY(cuMemsetD32Async, memsetD32Async),
            ENTRY(cuMemcpyAsync, memcpyAsync),
            ENTRY(cuDeviceCanAccessPeer, deviceCanAccessPeer),
            ENTRY(cuCtxEnablePeerAccess, ctxEnablePeerAccess),
        };
        own.insert(stand_in::memory_functions().begin(), stand_in::memory_functions().end());
        own.insert(stand_in::kernel_functions().begin(), stand_in::kernel_functions().end());
        return own;
    }();
#undef ENTRY
    return all;
}

}  // namespace

namespace stand_in {

int enqueue(void* stream, std::function<void()> work) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    found->add(std::move(work));
    return 0;
}
void add_range(const Range& range) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.memory[range.start] = {range.bytes, range.device};
}
bool remove_range(std::uint64_t start) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.memory.erase(start) != 0;
}
Range range_of(std::uint64_t address, std::size_t bytes) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto* const found = find_range(address, bytes);
    return found == nullptr ? Range{} : Range{found->first, found->second.bytes, found->second.device};
}
bool may_use(void* stream, std::uint64_t address, std::size_t bytes) {
    Stream* const found = find_stream(stream);
    const int device = found == nullptr ? -1 : found->context()->device;
    const Range range = range_of(address, bytes);
    if (range.bytes == 0) return false;
    if (range.device < 0 || range.device == device) return true;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.peers.contains({device, range.device}) && about(address).legacy != 0;
}
int current_device() { return current.empty() ? -1 : current.back()->device; }
int exchange_capture_mode(int mode) { return std::exchange(capture_mode, mode); }

}  // namespace stand_in

EXPORT int cuInit(unsigned) { return state().contexts.empty() ? 100 : 0; }
EXPORT int cuDriverGetVersion(int* version) { return cuDriverVersion(version); }
EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int*) {
    const char* const missing = std::getenv("STAND_IN_LACKS");
    const auto found = functions().find(symbol);
    const bool lacks = missing != nullptr && std::strcmp(missing, symbol) == 0;
    *function = found == functions().end() || lacks ? nullptr : found->second;
    return *function == nullptr ? 500 : 0;
}

// --- for the stand-in for NCCL, and for tests

// The stream does that work in its turn. Returns an error of CUDA.
EXPORT int stand_in_enqueue(void* stream, const std::function<void()>* work) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    found->add(*work);
    return 0;
}
// The stream that a handle stands for, in any thread; null if it does not exist.
EXPORT void* stand_in_resolve(void* stream) { return find_stream(stream); }
// Whether these bytes are memory of a device.
EXPORT int stand_in_is_device(std::uint64_t address, std::size_t bytes) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto* const found = find_range(address, bytes);
    return found != nullptr && found->second.device >= 0 ? 1 : 0;
}
// Memory of a device, of that stand_in::Kind.
EXPORT int stand_in_allocate(std::uint64_t* pointer, std::size_t bytes, int kind) {
    return allocate(pointer, bytes, static_cast<stand_in::Kind>(kind));
}
// The device of the current context; -1 if there is none.
EXPORT int stand_in_device() { return current.empty() ? -1 : current.back()->device; }
// 0, or the error of a call that a graph cannot contain.
EXPORT int stand_in_unsafe_in_capture() { return unsafe_in_capture(); }
// The captures of all streams are lost; returns how many there were.
EXPORT int stand_in_end_captures() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    int count = 0;
    for (Stream* const stream : s.streams) {
        if (stream->capture == 0) continue;
        stream->capture = 2;
        ++count;
    }
    return count;
}
EXPORT int stand_in_capture(void* stream, int on) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    if (on != 0) {
        found->begin_capture();
        return 0;
    }
    return found->capture.exchange(0) == 2 ? 901 : 0;
}
EXPORT int stand_in_is_captured(void* stream) {
    Stream* const found = find_stream(stream);
    return found != nullptr && found->capture != 0 ? 1 : 0;
}
// The graph that was captured last is freed.
EXPORT int stand_in_forget(void* stream) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    found->forget();
    return 0;
}
EXPORT int stand_in_launch(void* stream) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    found->launch();
    return 0;
}
EXPORT int stand_in_synchronize(void* stream) {
    Stream* const found = find_stream(stream);
    if (found == nullptr) return 400;
    if (found->capture != 0) {  // which this ends, as in the driver
        found->capture = 2;
        return 900;
    }
    found->synchronize();
    return 0;
}
// The registrations of host memory and the allocations that exist.
EXPORT int stand_in_registered() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    int count = 0;
    for (const auto& [address, range] : s.memory) count += range.device < 0 ? 1 : 0;
    return count;
}
// The handles of other processes' memory that are open.
EXPORT int stand_in_opened() { return static_cast<int>(stand_in::opened()); }
