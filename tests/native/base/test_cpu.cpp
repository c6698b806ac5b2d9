// The choice of instruction set, each in a process of its own because it is made once.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "base/cpu.hpp"

using namespace collectives;

namespace {

constexpr int refused = 100;

// The form chosen by a process with this COLLECTIVES_ISA (null: unset), or `refused`.
int chosen(const char* setting) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (setting == nullptr)
            unsetenv("COLLECTIVES_ISA");
        else
            setenv("COLLECTIVES_ISA", setting, 1);
        int code = refused;
        try {
            code = static_cast<int>(selected_isa());
            if (cpu_features().back() != name(selected_isa())) code = refused + 1;
        } catch (const std::invalid_argument& error) {
            if (std::string(error.what()).find(setting) == std::string::npos) code = refused + 2;
        }
        _exit(code);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int best() {
    int isa = 0;
    for (const Isa candidate : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (has(candidate)) isa = static_cast<int>(candidate);
    return isa;
}

}  // namespace

TEST_CASE("the best form is chosen unless the environment names another") {
    CHECK(chosen(nullptr) == best());
    CHECK(chosen("") == best());
    CHECK(chosen("baseline") == 0);
    CHECK(chosen("avx2") == (has(Isa::avx2) ? 1 : refused));
    CHECK(chosen("avx512") == (has(Isa::avx512) ? 2 : refused));
}

TEST_CASE("an unknown form is refused") {
    CHECK(chosen("avx1024") == refused);
    CHECK(chosen("AVX2") == refused);
}

TEST_CASE("the baseline runs everywhere") { CHECK(has(Isa::baseline)); }
