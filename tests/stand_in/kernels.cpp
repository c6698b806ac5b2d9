// The library's kernels on host memory: the same source as for a device, with one thread in each block.
//
// Invariant: a module is only loaded if it was made from the source that this file was compiled with.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "driver.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static thread_local

namespace {

struct Index {
    unsigned x = 0;
};
thread_local Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

// Each tile comes to it once. STAND_IN_TILE_US: microseconds that a tile takes, for tests that end a call
// while its kernel runs.
void __syncthreads() {
    static const char* const pause = std::getenv("STAND_IN_TILE_US");
    if (pause != nullptr) std::this_thread::sleep_for(std::chrono::microseconds(std::atoi(pause)));
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace

#include "cuda/kernels.cu"

namespace stand_in {

namespace {

using collectives::cuda::KernelArguments;
using Kernel = void (*)(const KernelArguments&, unsigned);

template <class Element>
void reduce(const KernelArguments& a, unsigned op) {
    collectives::cuda::reduce<Element>(a, op);
}
void move(const KernelArguments& a, unsigned) { collectives::cuda::move(a); }

const std::map<std::string, Kernel>& reductions() {
#define REDUCTION(element)                            \
    {                                                 \
        #element, &reduce<collectives::cuda::element> \
    }
    static const std::map<std::string, Kernel> all{
        REDUCTION(float16), REDUCTION(bfloat16),  REDUCTION(float32),    REDUCTION(float64),
        REDUCTION(int8),    REDUCTION(int16),     REDUCTION(int32),      REDUCTION(int64),
        REDUCTION(uint8),   REDUCTION(uint16),    REDUCTION(uint32),     REDUCTION(uint64),
        REDUCTION(boolean), REDUCTION(complex64), REDUCTION(complex128),
    };
#undef REDUCTION
    return all;
}

std::string text_of(const char* path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

struct Module {
    std::string element;
    unsigned op = 0;
};
struct Function {
    Kernel kernel;
    unsigned op;
};

// The image is what the stand-in for NVRTC makes: one definition in each line, an empty line, and the source.
int moduleLoadData(Module** module, const void* image) {
    static const std::string source = text_of(STAND_IN_KERNELS);
    const std::string text = static_cast<const char*>(image);
    const std::size_t end = text.find("\n\n");
    if (text.find(".entry nothing()") != std::string::npos) {  // PTX of a kernel that does nothing
        *module = new Module{"nothing"};
        return 0;
    }
    if (!text.starts_with("stand-in\n") || end == std::string::npos) return 200;
    if (text.substr(end + 2) != source) return 209;
    Module made;
    std::stringstream lines(text.substr(0, end));
    for (std::string line; std::getline(lines, line);) {
        const std::size_t equals = line.find('=');
        if (line.starts_with("COLLECTIVES_ELEMENT=")) made.element = line.substr(equals + 1);
        if (line.starts_with("COLLECTIVES_OP="))
            made.op = static_cast<unsigned>(std::atoi(line.c_str() + equals + 1));
    }
    *module = new Module(made);
    return 0;
}
int moduleUnload(Module* module) {
    delete module;
    return 0;
}
int moduleGetFunction(Function** function, Module* module, const char* name) {
    Kernel kernel = nullptr;
    if (std::strcmp(name, "collectives_move") == 0) kernel = &move;
    if (std::strcmp(name, "collectives_reduce") == 0) {
        const auto found = reductions().find(module->element);
        if (found != reductions().end()) kernel = found->second;
    }
    const bool is_empty = module->element == "nothing" && std::strcmp(name, "nothing") == 0;
    if (kernel == nullptr && !is_empty) return 500;
    *function = new Function{kernel, module->op};  // as long as the process
    return 0;
}
int launchKernel(Function* function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned,
                 unsigned, void* stream, void** arguments, void**) {
    if (function->kernel == nullptr) return enqueue(stream, [] {});
    KernelArguments a;
    std::memcpy(&a, arguments[0], sizeof(a));
    for (unsigned rank = 0; rank < a.size; ++rank) {
        for (const auto address : {a.in[rank], a.out[rank], a.epoch[rank]}) {
            if (address != 0 && !may_use(stream, address, 1)) return 700;
        }
    }
    return enqueue(stream, [kernel = function->kernel, op = function->op, a, blocks] {
        blockDim.x = 1;
        gridDim.x = blocks;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) kernel(a, op);
    });
}
int exchangeCaptureMode(int* mode) {
    *mode = exchange_capture_mode(*mode);
    return 0;
}

}  // namespace

const Table& kernel_functions() {
    static const Table all{
        STAND_IN_ENTRY(cuModuleLoadData, moduleLoadData),
        STAND_IN_ENTRY(cuModuleUnload, moduleUnload),
        STAND_IN_ENTRY(cuModuleGetFunction, moduleGetFunction),
        STAND_IN_ENTRY(cuLaunchKernel, launchKernel),
        STAND_IN_ENTRY(cuThreadExchangeStreamCaptureMode, exchangeCaptureMode),
    };
    return all;
}

}  // namespace stand_in
