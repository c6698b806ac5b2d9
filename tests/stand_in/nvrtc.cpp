// A stand-in for NVRTC, for tests on machines without a GPU. It compiles nothing: the image that it makes is
// the source itself, which the stand-in for the driver compares with the source that it was compiled with.
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
struct Program {
    std::string source;
    std::string image;
};
Program* of(void* program) { return static_cast<Program*>(program); }
}  // namespace

EXPORT const char* nvrtcGetErrorString(int) { return "said by the stand-in"; }
EXPORT int nvrtcVersion(int* major, int* minor) {
    *major = 12;
    *minor = 4;
    return 0;
}
EXPORT int nvrtcGetNumSupportedArchs(int* count) {
    *count = 2;
    return 0;
}
EXPORT int nvrtcGetSupportedArchs(int* architectures) {
    architectures[0] = 80;
    architectures[1] = 90;
    return 0;
}
EXPORT int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                              const char* const*) {
    *program = new Program{source, ""};
    return 0;
}
EXPORT int nvrtcDestroyProgram(void** program) {
    delete of(*program);
    *program = nullptr;
    return 0;
}
// STAND_IN_NO_COMPILATION: fail, for tests that show what was compiled before.
EXPORT int nvrtcCompileProgram(void* program, int count, const char* const* options) {
    if (std::getenv("STAND_IN_NO_COMPILATION") != nullptr) return 6;
    std::string& image = of(program)->image;
    image = "stand-in\n";
    for (int i = 0; i < count; ++i) {
        const std::string_view option = options[i];
        if (option.starts_with("-D")) image += std::string(option.substr(2)) + "\n";
    }
    image += "\n" + of(program)->source;
    return 0;
}
EXPORT int nvrtcGetProgramLogSize(void*, std::size_t* size) {
    *size = 1;
    return 0;
}
EXPORT int nvrtcGetProgramLog(void*, char* log) {
    *log = '\0';
    return 0;
}
EXPORT int nvrtcGetCUBINSize(void* program, std::size_t* size) {
    *size = of(program)->image.size() + 1;
    return 0;
}
EXPORT int nvrtcGetCUBIN(void* program, char* image) {
    std::memcpy(image, of(program)->image.c_str(), of(program)->image.size() + 1);
    return 0;
}
EXPORT int nvrtcGetPTXSize(void* program, std::size_t* size) { return nvrtcGetCUBINSize(program, size); }
EXPORT int nvrtcGetPTX(void* program, char* image) { return nvrtcGetCUBIN(program, image); }
