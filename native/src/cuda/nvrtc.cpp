#include "cuda/nvrtc.hpp"

#include <algorithm>
#include <memory>

#include "base/error.hpp"

namespace collectives::cuda {

Compiler::Compiler(const std::string& path) : path_(path) {
    std::string why;
    const SharedObject object = SharedObject::open(path, why);
    if (!object) throw Error(ErrorKind::transport_unavailable, "NVRTC cannot be loaded: " + why);
    std::string missing;
    const auto resolve = [&](auto& member, const char* symbol) {
        member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(object.symbol(symbol));
        if (member == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
    };
    resolve(api_.error_string, "nvrtcGetErrorString");
    resolve(api_.version, "nvrtcVersion");
    resolve(api_.count_architectures, "nvrtcGetNumSupportedArchs");
    resolve(api_.architectures, "nvrtcGetSupportedArchs");
    resolve(api_.create, "nvrtcCreateProgram");
    resolve(api_.destroy, "nvrtcDestroyProgram");
    resolve(api_.compile, "nvrtcCompileProgram");
    resolve(api_.log_size, "nvrtcGetProgramLogSize");
    resolve(api_.log, "nvrtcGetProgramLog");
    resolve(api_.binary_size, "nvrtcGetCUBINSize");
    resolve(api_.binary, "nvrtcGetCUBIN");
    resolve(api_.text_size, "nvrtcGetPTXSize");
    resolve(api_.text, "nvrtcGetPTX");
    if (!missing.empty()) {
        throw Error(ErrorKind::transport_unavailable,
                    path + " lacks " + missing + ": install nvidia-cuda-nvrtc-cu12, or nvidia-cuda-nvrtc");
    }
    int major = 0;
    int minor = 0;
    check(api_.version(&major, &minor), "nvrtcVersion");
    version_ = 1000 * major + 10 * minor;
}

void Compiler::check(Result result, const char* function) const {
    if (result == 0) return;
    throw Error(ErrorKind::transport_unavailable,
                std::string(function) + " failed: " + api_.error_string(result) + " (" + path_ + ")");
}

std::string Compiler::compile(const Source& source, int capability, std::vector<std::string> options) const {
    int count = 0;
    check(api_.count_architectures(&count), "nvrtcGetNumSupportedArchs");
    std::vector<int> known(static_cast<std::size_t>(count));
    check(api_.architectures(known.data()), "nvrtcGetSupportedArchs");
    const bool is_known = std::ranges::find(known, capability) != known.end();
    int target = capability;
    if (!is_known) {
        std::erase_if(known, [&](int one) { return one > capability; });
        if (known.empty()) {
            throw Error(ErrorKind::transport_unavailable,
                        path_ + " does not compile for devices of compute capability " +
                            std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                            ": install an older one (nvidia-cuda-nvrtc-cu12)");
        }
        target = *std::ranges::max_element(known);
    }
    options.push_back("--gpu-architecture=" + std::string(is_known ? "sm_" : "compute_") +
                      std::to_string(target));

    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const auto& [name, text] : source.headers) {
        names.push_back(name.c_str());
        texts.push_back(text.c_str());
    }
    std::vector<const char*> flags;
    for (const std::string& option : options) flags.push_back(option.c_str());

    Program program = nullptr;
    check(api_.create(&program, source.text.c_str(), source.name.c_str(), static_cast<int>(names.size()),
                      texts.data(), names.data()),
          "nvrtcCreateProgram");
    const auto destroy = [this](void* one) { api_.destroy(&one); };
    const std::unique_ptr<void, decltype(destroy)> owned(program, destroy);
    const Result result = api_.compile(program, static_cast<int>(flags.size()), flags.data());
    if (result != 0) {
        std::size_t size = 0;
        std::string log;
        if (api_.log_size(program, &size) == 0 && size > 1) {
            log.resize(size);
            api_.log(program, log.data());
        }
        throw Error(ErrorKind::transport_unavailable, source.name + " was not compiled by " + path_ + ": " +
                                                          api_.error_string(result) + "\n" + log.c_str());
    }
    std::size_t size = 0;
    check((is_known ? api_.binary_size : api_.text_size)(program, &size), "nvrtcGetCUBINSize");
    std::string image(size, '\0');
    check((is_known ? api_.binary : api_.text)(program, image.data()), "nvrtcGetCUBIN");
    return image;
}

}  // namespace collectives::cuda
