#include "link.hpp"

#include "error.hpp"

namespace collectives {

std::string Peer::name() const {
    std::string text = "rank " + std::to_string(rank);
    if (!host.empty()) text += " (" + host + ")";
    return text;
}

void Link::throw_lost(const std::string& why) const {
    throw Error(ErrorKind::peer_lost, peer_.name() + " is gone: " + why, {peer_.rank});
}

void Link::throw_desync(const Context& mine, const std::string& theirs) const {
    throw Error(ErrorKind::desync,
                "ranks called different operations: this rank is in " + mine.call.describe() + "; " +
                    peer_.name() + " is in " + theirs,
                {peer_.rank});
}

}  // namespace collectives
