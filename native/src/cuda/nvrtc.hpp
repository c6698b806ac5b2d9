// NVIDIA's run-time compiler of CUDA C++, loaded while the program runs.
//
// Invariant: nothing of it is needed to build this library. What it compiles is for one device's
// architecture, as machine code if the compiler knows the architecture, else as code that the driver
// translates.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/shared_object.hpp"

namespace collectives::cuda {

class Compiler {
  public:
    // Loads the file at that path, or of that name. Throws Error(transport_unavailable).
    explicit Compiler(const std::string& path);

    // 12040 for 12.4
    int version() const { return version_; }

    struct Source {
        std::string name;
        std::string text;
        std::vector<std::pair<std::string, std::string>> headers;  // by the name that includes them
    };
    // An image that cuModuleLoadData accepts. `capability`: 90 for 9.0. Throws Error with the compiler's
    // text.
    std::string compile(const Source& source, int capability, std::vector<std::string> options) const;

  private:
    using Program = void*;
    using Result = int;
    struct Api {
        const char* (*error_string)(Result) = nullptr;
        Result (*version)(int*, int*) = nullptr;
        Result (*count_architectures)(int*) = nullptr;
        Result (*architectures)(int*) = nullptr;
        Result (*create)(Program*, const char*, const char*, int, const char* const*,
                         const char* const*) = nullptr;
        Result (*destroy)(Program*) = nullptr;
        Result (*compile)(Program, int, const char* const*) = nullptr;
        Result (*log_size)(Program, std::size_t*) = nullptr;
        Result (*log)(Program, char*) = nullptr;
        Result (*binary_size)(Program, std::size_t*) = nullptr;
        Result (*binary)(Program, char*) = nullptr;
        Result (*text_size)(Program, std::size_t*) = nullptr;
        Result (*text)(Program, char*) = nullptr;
    };
    void check(Result result, const char* function) const;

    Api api_;
    std::string path_;
    int version_ = 0;
};

}  // namespace collectives::cuda
