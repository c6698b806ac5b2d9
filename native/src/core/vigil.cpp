#include "core/vigil.hpp"

#include <algorithm>
#include <cstdio>

namespace collectives {

using namespace std::chrono_literals;

namespace {

// Longer gaps between two looks show that the process did not run.
constexpr auto longest_gap = 1s;
constexpr auto reports_after = 500ms;
constexpr auto warns_after = 30s;
// The others' answers arrive within this time.
constexpr auto answers_take = 500ms;
constexpr auto most_jitter = 250ms;
// Before a deadline, the others are asked half of the time ahead, but at most by this.
constexpr double ask_ahead = 0.7;  // seconds

Clock::duration jitter_of(int rank) {
    const std::uint32_t mixed = static_cast<std::uint32_t>(rank) * 2654435761U;
    return most_jitter / 256 * (mixed >> 24);
}

}  // namespace

Vigil::Vigil(double timeout, int rank, Clock::time_point now)
    : began_(now), looked_(now), deadline_(timeout), jitter_(jitter_of(rank)) {
    const double ahead = std::min(timeout / 2, ask_ahead);
    constexpr double never = 1e9;
    asks_after_ = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(timeout, never) - ahead));
}

void Vigil::look(Health& health, const Call* call, std::uint32_t fingerprint, Clock::time_point now) {
    if (const auto gap = now - looked_; gap > longest_gap) {
        began_ += gap;
        deadline_.extend(gap);
    }
    looked_ = now;
    if (call == nullptr || !health.is_watched()) return;
    const auto waited = now - began_;
    if (!reported_ && waited >= reports_after + jitter_) {
        reported_ = true;
        health.reports().stalled(*call, fingerprint);
    }
    if (!asked_ && waited >= asks_after_) {
        asked_ = true;
        health.forget_late();
        health.reports().ask_for_late(*call);
    }
    if (!asked_to_warn_ && waited >= warns_after - answers_take + jitter_) {
        asked_to_warn_ = true;
        health.forget_late();
        health.reports().ask_for_late(*call);
    }
    if (!warned_ && waited >= warns_after + jitter_) {
        warned_ = true;
        health.warn_of_late(*call, waited);
    }
}

}  // namespace collectives
