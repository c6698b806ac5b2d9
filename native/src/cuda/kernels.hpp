// This library's kernels on a device, each compiled when it is first needed.
//
// Invariant: which kernel runs depends only on the element type and the operation, so results do not depend
// on what was compiled before.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/types.hpp"
#include "cuda/kernel_arguments.hpp"
#include "cuda/module.hpp"
#include "cuda/nvrtc.hpp"

namespace collectives::cuda {

class Kernels {
  public:
    // `compiler`: the path of NVRTC. Throws Error if it cannot be loaded.
    Kernels(std::shared_ptr<const PrimaryContext> context, const std::string& compiler);

    // Takes half a second or so for the first call with an element type and operation. Throws Error.
    FunctionHandle reduction(DType dtype, Op op);
    FunctionHandle move();

    // How many blocks and threads a call of this form has; `bytes` of a part.
    Grid grid(Form form, int size, std::uint64_t bytes) const;

  private:
    struct Loaded {
        std::unique_ptr<Module> module;
        FunctionHandle function = nullptr;
    };
    Loaded load(const char* name, std::vector<std::string> options) const;

    std::shared_ptr<const PrimaryContext> context_;
    Compiler compiler_;
    int capability_;
    int multiprocessors_;
    std::map<std::pair<DType, Op>, Loaded> reductions_;
    Loaded move_;
};

}  // namespace collectives::cuda
