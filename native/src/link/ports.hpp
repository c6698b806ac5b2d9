// Where ranks that are threads of one process find what each offers to the others.
//
// Invariant: an address is valid from `open` to `close`; who found an offer keeps it as long as needed.
#pragma once

#include <optional>
#include <string>

#include "link/offer.hpp"

namespace collectives::ports {

// A new address for the offer of that transport, unique in this process.
std::string open(const std::string& transport, Offer offer);
void close(const std::string& address);
// Nothing if nobody is there (any more), or of another transport.
std::optional<PeerOffer> find(const std::string& transport, const std::string& address);

}  // namespace collectives::ports
