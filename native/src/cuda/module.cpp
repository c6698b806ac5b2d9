#include "cuda/module.hpp"

#include <array>

#include "base/error.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

Module::Module(std::shared_ptr<const PrimaryContext> context, const std::string& image)
    : context_(std::move(context)) {
    const Current current(*context_);
    const RelaxedCapture relaxed;
    check(driver().module_load(&handle_, image.c_str()), "cuModuleLoadData", context_->device());
}

Module::~Module() {
    try {
        const Current current(*context_);
        driver().module_unload(handle_);
    } catch (const Error&) {
        return;  // the context is lost, and its modules with it
    }
}

FunctionHandle Module::function(const char* name) const {
    FunctionHandle found = nullptr;
    check(driver().module_get_function(&found, handle_, name), "cuModuleGetFunction", context_->device());
    return found;
}

void launch(FunctionHandle function, const Grid& grid, StreamHandle stream, const void* argument) {
    std::array<void*, 1> arguments{const_cast<void*>(argument)};
    check(driver().launch_kernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream, arguments.data(),
                                 nullptr),
          "cuLaunchKernel");
}

}  // namespace collectives::cuda
