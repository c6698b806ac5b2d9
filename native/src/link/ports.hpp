// The addresses at which ranks that are threads of one process find each other's offers.
//
// Invariant: an address is valid from `open` to `close`; an offer that was found stays valid after `close`.
#pragma once

#include <optional>
#include <string>

#include "link/offer.hpp"

namespace collectives::ports {

// A new address for the offer of that transport, unique in this process.
std::string open(const std::string& transport, Offer offer);
void close(const std::string& address);
// The offer at that address; nothing if there is none (any more), or if it is one of another transport.
std::optional<PeerOffer> find(const std::string& transport, const std::string& address);

}  // namespace collectives::ports
