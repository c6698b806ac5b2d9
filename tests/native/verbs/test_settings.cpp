#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "base/error.hpp"
#include "verbs/settings.hpp"

using namespace collectives;
using namespace collectives::verbs;
using namespace std::chrono_literals;

namespace {

struct Environment {
    explicit Environment(std::map<std::string, std::string> values) : set(std::move(values)) {
        for (const auto& [name, value] : set) ::setenv(name.c_str(), value.c_str(), 1);
    }
    ~Environment() {
        for (const auto& [name, value] : set) ::unsetenv(name.c_str());
    }
    std::map<std::string, std::string> set;
};

std::string refusal(std::map<std::string, std::string> values, std::chrono::nanoseconds silence = 10s) {
    const Environment environment(std::move(values));
    try {
        settings(silence);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::transport_unavailable);
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("by default a dead path is found within the limit of heartbeats, whatever that is") {
    for (const std::chrono::nanoseconds limit :
         {std::chrono::nanoseconds(10s), std::chrono::nanoseconds(1s), std::chrono::nanoseconds(100ms)}) {
        CHECK(settings(limit).found_within() <= std::chrono::duration<double>(limit).count());
    }
    CHECK(settings(10s).ack_timeout == 16);
    CHECK(settings(10s).retries == 6);
    CHECK(settings(10s).rnr_retries == 0);
    CHECK(settings(0s).ack_timeout == 16);
}

TEST_CASE("what is set is used") {
    const Environment environment({{"COLLECTIVES_VERBS_TIMEOUT", "14"},
                                   {"COLLECTIVES_VERBS_RETRIES", "3"},
                                   {"COLLECTIVES_VERBS_RNR_RETRIES", "2"},
                                   {"COLLECTIVES_VERBS_DIRECT_FROM", "1048576"}});
    const Settings found = settings(10s);
    CHECK(found.ack_timeout == 14);
    CHECK(found.retries == 3);
    CHECK(found.rnr_retries == 2);
    CHECK(found.direct_from == 1 << 20);
}

TEST_CASE("what was measured is used unless something else is set") {
    CHECK(settings(10s, 128 << 10).direct_from == 128 << 10);
    CHECK(settings(10s, 1).direct_from == 4 << 10);
    const std::map<std::string, std::string> set{{"COLLECTIVES_VERBS_DIRECT_FROM", "1048576"}};
    const Environment environment(set);
    CHECK(settings(10s, 128 << 10).direct_from == 1 << 20);
}

TEST_CASE("values with which nothing ever times out are refused, and the variable is named") {
    for (const auto& [variable, value] :
         std::multimap<std::string, std::string>{{"COLLECTIVES_VERBS_TIMEOUT", "0"},
                                                 {"COLLECTIVES_VERBS_TIMEOUT", "32"},
                                                 {"COLLECTIVES_VERBS_TIMEOUT", "x"},
                                                 {"COLLECTIVES_VERBS_TIMEOUT", "-1"},
                                                 {"COLLECTIVES_VERBS_RETRIES", "7"},
                                                 {"COLLECTIVES_VERBS_RNR_RETRIES", "7"},
                                                 {"COLLECTIVES_VERBS_RNR_RETRIES", "1 "},
                                                 {"COLLECTIVES_VERBS_DIRECT_FROM", "0"}}) {
        CHECK(refusal({{variable, value}}).find(variable + " is '" + value + "'") == 0);
    }
}

TEST_CASE("a timeout that is longer than the limit of heartbeats is refused") {
    const std::string why = refusal({{"COLLECTIVES_VERBS_TIMEOUT", "20"}});
    CHECK(why.find("heartbeats (10 s)") != std::string::npos);
    CHECK(refusal({{"COLLECTIVES_VERBS_TIMEOUT", "20"}}, 0s).empty());
    CHECK(refusal({{"COLLECTIVES_VERBS_TIMEOUT", "20"}}, 300s).empty());
}
