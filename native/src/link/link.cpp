#include "link/link.hpp"

#include <array>
#include <cstdio>

#include "base/error.hpp"

namespace collectives {

std::string Peer::name() const {
    std::string text = "rank " + std::to_string(rank);
    if (!host.empty()) text += " (" + host + ")";
    return text;
}

void Link::throw_lost(const Call& during, const std::string& why) const {
    throw_disagreement(during);
    if (const std::optional<int> first = blamed()) {
        throw Error(ErrorKind::peer_lost,
                    name_ranks({*first}) + " is gone during " + during.describe() + ": " + peer_.name() +
                        " has noticed it, and has given up",
                    {*first});
    }
    throw_refused(during, why);
}

void Link::throw_unwanted(Call mine, const Announcement& theirs, const std::string& remark) const {
    // Numbers of messages are counted on each side, so they need not agree.
    if (theirs.point_to_point) mine.sequence = theirs.call.sequence;
    throw_desync(mine, theirs.call, remark);
}

void Link::throw_refused(const Call& during, const std::string& why) const {
    throw Error(ErrorKind::peer_lost, peer_.name() + " is gone during " + during.describe() + ": " + why,
                {peer_.rank});
}

void Link::throw_desync(const Call& mine, const Call& theirs, const std::string& remark) const {
    report_disagreement(mine, theirs);
    throw desync(mine, theirs, remark, Finder::this_rank);
}

Error Link::desync(const Call& mine, const Call& theirs, const std::string& remark, Finder finder) const {
    const std::string self = peer_.self.empty() ? "this rank" : peer_.self;
    std::string text = "ranks called different operations: " + self + " is in " + mine.describe() + "; " +
                       peer_.name() + " is in " + theirs.describe();
    if (mine.algorithm != theirs.algorithm) {
        std::array<char, 96> codes{};
        std::snprintf(codes.data(), codes.size(),
                      " by another algorithm, or in another list of arrays (%08x here, %08x there)",
                      mine.algorithm, theirs.algorithm);
        text += codes.data();
    }
    return {ErrorKind::desync, text + remark, {peer_.rank}, finder};
}

}  // namespace collectives
