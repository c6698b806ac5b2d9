// Code on a device: a loaded module, and kernels that a stream runs.
//
// Invariant: a module stays loaded as long as the object exists.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "cuda/api.hpp"
#include "cuda/context.hpp"

namespace collectives::cuda {

class Module {
  public:
    // Loads an image (see Compiler) into that context. Throws Error.
    Module(std::shared_ptr<const PrimaryContext> context, const std::string& image);
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;
    // No kernel of it may run any more.
    ~Module();

    // Throws Error if there is none of that name.
    FunctionHandle function(const char* name) const;

  private:
    std::shared_ptr<const PrimaryContext> context_;
    ModuleHandle handle_ = nullptr;
};

struct Grid {
    unsigned blocks = 1;
    unsigned threads = 1;  // of a block
};

// The stream runs a kernel with one argument, which is copied before the call returns.
void launch(FunctionHandle function, const Grid& grid, StreamHandle stream, const void* argument);

}  // namespace collectives::cuda
