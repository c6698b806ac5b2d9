#include "base/shared_object.hpp"

#include <dlfcn.h>
#include <link.h>

#include <set>

namespace collectives {

namespace {

struct Loaded {
    const std::string& prefix;
    std::set<std::string> files;
    std::string first;
};

int note_loaded(dl_phdr_info* info, std::size_t, void* data) {
    auto& found = *static_cast<Loaded*>(data);
    const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const std::string name = path.substr(path.rfind('/') + 1);
    if (name.compare(0, found.prefix.size(), found.prefix) != 0) return 0;
    if (found.files.insert(path).second && found.first.empty()) found.first = path;
    return 0;
}

}  // namespace

SharedObject SharedObject::open(const std::string& name, std::string& why) {
    void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* const reason = ::dlerror();
        why = reason == nullptr ? "the loader gives no reason" : reason;
    }
    return SharedObject(handle);
}

void* SharedObject::symbol(const char* name) const {
    return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

std::string SharedObject::file_of(const void* address) {
    Dl_info info{};
    if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
    return info.dli_fname;
}

std::string SharedObject::loaded(const std::string& prefix, int* count) {
    Loaded found{prefix, {}, {}};
    ::dl_iterate_phdr(&note_loaded, &found);
    if (count != nullptr) *count = static_cast<int>(found.files.size());
    return found.first;
}

}  // namespace collectives
