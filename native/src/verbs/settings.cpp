#include "verbs/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace collectives::verbs {

namespace {

constexpr double timeout_unit = 4.096e-6;  // seconds
// A device may wait so many times as long as it was told before it tries again.
constexpr double slower = 4;
// Devices take 7 retries for eight tries, or for ever.
constexpr std::uint64_t most_retries = 6;
constexpr std::uint64_t longest_timeout = 31;
constexpr std::uint64_t shortest_direct = 4 << 10;
constexpr std::uint64_t longest_direct = std::uint64_t{1} << 62;

std::optional<std::uint64_t> number(const char* variable, std::uint64_t least, std::uint64_t most,
                                    const char* reason) {
    const char* const set = std::getenv(variable);
    if (set == nullptr || *set == '\0') return std::nullopt;
    const std::string_view text(set);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
        return value;
    throw Error(ErrorKind::transport_unavailable,
                std::string(variable) + " is '" + set + "', and must be a number from " +
                    std::to_string(least) + " to " + std::to_string(most) + reason);
}

}  // namespace

double Settings::found_within() const {
    return (retries + 1.0) * timeout_unit * static_cast<double>(std::uint64_t{1} << ack_timeout) * slower;
}

Settings settings(std::chrono::nanoseconds silence, std::size_t rendezvous) {
    Settings found;
    if (rendezvous > 0) found.direct_from = std::max<std::size_t>(rendezvous, shortest_direct);
    const auto timeout =
        number("COLLECTIVES_VERBS_TIMEOUT", 1, longest_timeout, ": with 0 a dead path would never be found");
    const auto retries =
        number("COLLECTIVES_VERBS_RETRIES", 0, most_retries, ": with 7 some devices try for ever");
    const auto rnr =
        number("COLLECTIVES_VERBS_RNR_RETRIES", 0, most_retries, ": with 7 devices try for ever");
    const auto direct = number("COLLECTIVES_VERBS_DIRECT_FROM", shortest_direct, longest_direct, " (bytes)");
    if (timeout) found.ack_timeout = static_cast<std::uint8_t>(*timeout);
    if (retries) found.retries = static_cast<std::uint8_t>(*retries);
    if (rnr) found.rnr_retries = static_cast<std::uint8_t>(*rnr);
    if (direct) found.direct_from = static_cast<std::size_t>(*direct);
    const double limit = std::chrono::duration<double>(silence).count();
    if (limit <= 0) return found;
    while (!timeout && found.ack_timeout > 1 && found.found_within() > limit) --found.ack_timeout;
    if (found.found_within() <= limit) return found;
    throw Error(ErrorKind::transport_unavailable,
                "with COLLECTIVES_VERBS_TIMEOUT=" + std::to_string(found.ack_timeout) +
                    " and COLLECTIVES_VERBS_RETRIES=" + std::to_string(found.retries) +
                    " a dead path may take " + std::to_string(static_cast<int>(found.found_within())) +
                    " s to be found, which is longer than the limit of heartbeats (" +
                    std::to_string(static_cast<int>(limit)) + " s): choose smaller values");
}

}  // namespace collectives::verbs
