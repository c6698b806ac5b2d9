#include "cuda/kernels.hpp"

#include <algorithm>

#include "cuda/device.hpp"
#include "cuda/kernels_text.hpp"

namespace collectives::cuda {

namespace {

constexpr unsigned threads = 512;
// What a block of threads moves at a time: as in kernels.cu.
constexpr std::uint64_t tile_bytes = std::uint64_t{threads} * 4 * 16;
// As many blocks as a multiprocessor of all supported devices can hold.
constexpr unsigned blocks_each = 4;

}  // namespace

Kernels::Kernels(std::shared_ptr<const PrimaryContext> context, const std::string& compiler)
    : context_(std::move(context)), compiler_(compiler) {
    const Device found = device(context_->device());
    capability_ = found.capability;
    multiprocessors_ = found.multiprocessors;
}

Kernels::Loaded Kernels::load(const char* name, std::vector<std::string> options) const {
    // As on the CPU, no multiplication and addition become one.
    options.insert(options.end(), {"--std=c++17", "--fmad=false"});
    const std::string image =
        compiler_.compile({.name = "kernels.cu",
                           .text = text::kernels,
                           .headers = {{"cuda/kernel_arguments.hpp", text::kernel_arguments}}},
                          capability_, std::move(options));
    Loaded loaded;
    loaded.module = std::make_unique<Module>(context_, image);
    loaded.function = loaded.module->function(name);
    return loaded;
}

FunctionHandle Kernels::reduction(DType dtype, Op op) {
    Loaded& one = reductions_[{dtype, op}];
    if (one.function == nullptr) {
        const std::string element = dtype == DType::boolean ? "boolean" : std::string(name(dtype));
        one = load("collectives_reduce", {"-DCOLLECTIVES_ELEMENT=" + element,
                                          "-DCOLLECTIVES_OP=" + std::to_string(static_cast<unsigned>(op))});
    }
    return one.function;
}

FunctionHandle Kernels::move() {
    if (move_.function == nullptr) move_ = load("collectives_move", {});
    return move_.function;
}

Grid Kernels::grid(Form form, int size, std::uint64_t bytes) const {
    const auto ranks = static_cast<std::uint64_t>(size);
    const bool is_whole = form == Form::reduce || form == Form::broadcast;
    const std::uint64_t parts = is_whole ? 1 : form == Form::transpose ? ranks * ranks : ranks;
    const std::uint64_t tiles = parts * ((bytes + tile_bytes - 1) / tile_bytes);
    const auto most = static_cast<std::uint64_t>(multiprocessors_) * blocks_each;
    return {static_cast<unsigned>(std::clamp<std::uint64_t>(tiles, 1, most)), threads};
}

}  // namespace collectives::cuda
