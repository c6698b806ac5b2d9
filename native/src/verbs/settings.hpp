// What the user may set of RDMA connections, by environment variables.
//
// Invariant: a dead path is always found, within the limit of heartbeats if these are on: values with which a
// device would wait for ever, or longer, are refused.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "verbs/tuning.hpp"

namespace collectives::verbs {

struct Settings {
    // COLLECTIVES_VERBS_TIMEOUT: a request that is not acknowledged within 4.096 us * 2^timeout is sent
    // again.
    std::uint8_t ack_timeout = 16;  // 0.27 s
    // COLLECTIVES_VERBS_RETRIES: so many times.
    std::uint8_t retries = 6;
    // COLLECTIVES_VERBS_RNR_RETRIES: so often a peer without posted receives is asked again. Credits are
    // there so that this never happens.
    std::uint8_t rnr_retries = 0;
    // COLLECTIVES_VERBS_DIRECT_FROM: bytes of the shortest message that this rank has written straight to its
    // destination.
    std::size_t direct_from = verbs::direct_from;

    // After how long a dead path is found, at the latest.
    double found_within() const;  // seconds
};

// Of the environment. `silence`: the limit of heartbeats, 0 for none; the default timeout is shorter if that
// is needed. `rendezvous`: `direct_from` as it was measured, which the environment overrides; 0: the default.
// Throws Error(transport_unavailable) for values that are not possible.
Settings settings(std::chrono::nanoseconds silence, std::size_t rendezvous = 0);

}  // namespace collectives::verbs
