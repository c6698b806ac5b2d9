// A shared object that is loaded while the program runs, and its symbols.
//
// Invariant: it stays loaded until the process ends, so that its functions may be called at any time.
#pragma once

#include <string>
#include <utility>

namespace collectives {

class SharedObject {
  public:
    // `name`: a path, or a name that the dynamic loader looks for. Its symbols stay its own. If it cannot be
    // loaded, the result is false, and `why` is the loader's reason.
    static SharedObject open(const std::string& name, std::string& why);

    explicit operator bool() const { return handle_ != nullptr; }
    // Null if it has no such symbol.
    void* symbol(const char* name) const;
    // The file that defines the function at `address`; empty if it is unknown.
    static std::string file_of(const void* address);
    // The file of a loaded shared object whose name begins with `prefix`, such as "libcuda.so"; empty if none
    // is loaded. `count`, if not null, is set to the number of different files with such names.
    static std::string loaded(const std::string& prefix, int* count = nullptr);

  private:
    explicit SharedObject(void* handle) : handle_(handle) {}

    void* handle_ = nullptr;
};

}  // namespace collectives
