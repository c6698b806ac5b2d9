// The NCCL of this process.
//
// Invariant: a process uses one libnccl, and takes all functions from it. Where another library of the
// process, such as PyTorch, has loaded one already, that one is used, or none: two of them in one process may
// call each other's functions.
#pragma once

#include <string>
#include <vector>

#include "nccl/api.hpp"

namespace collectives::nccl {

// "2.32.3" for 23203
std::string version_text(int version);

// The path of the libnccl that is loaded in this process; empty if none is. Throws Error(config_mismatch) if
// there are several.
std::string loaded_file();

class Library {
  public:
    // Loads the file at that absolute path, which is the one to use from then on. Throws
    // Error(transport_unavailable) if it is no libnccl, or older than `oldest_version`, and
    // Error(config_mismatch) if another libnccl is loaded.
    static const Library& load(const std::string& path);

    const Api& api() const { return api_; }
    const std::string& path() const { return path_; }
    int version() const { return version_; }
    // The symbols of COLLECTIVES_NCCL_FEATURES that it has.
    const std::vector<std::string>& features() const { return features_; }

    // Throws an Error that names the failed function, the device if `device` is not negative, NCCL's own
    // text, and the cure.
    [[noreturn]] void throw_failure(Result result, const char* function, Handle communicator = nullptr,
                                    int device = -1) const;
    void check(Result result, const char* function, Handle communicator = nullptr) const {
        if (result != success) throw_failure(result, function, communicator);
    }

  private:
    explicit Library(const std::string& path);

    std::string path_;
    int version_ = 0;
    Api api_;
    std::vector<std::string> features_;
};

}  // namespace collectives::nccl
