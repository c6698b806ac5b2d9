#include "schedule/relay.hpp"

#include <algorithm>

namespace collectives {

std::uint64_t post_tag(const Call& call, Program::Ordinal ordinal) { return call.sequence << 16 | ordinal; }

void Relay::begin(const Program::Relay& relay, const Call& call, std::span<Link* const> links,
                  std::uint64_t length) {
    begun_ = true;
    length_ = length;
    targets_.clear();
    for (const auto& [peer, ordinal, read] : relay.messages) {
        Link* const link = links[static_cast<std::size_t>(peer)];
        const std::uint64_t tag = post_tag(call, ordinal);
        if (link != nullptr && link->window(tag, length, read) != nullptr) {
            targets_.push_back({peer, link, tag, read});
        }
    }
}

void Relay::find_places(std::uint64_t at, std::vector<std::byte*>& places) const {
    for (const Target& target : targets_) {
        std::byte* const place = target.link->window(target.tag, length_, target.read);
        if (place != nullptr) places.push_back(place + at);
    }
}

bool Relay::reaches(int peer) const {
    return begun_ && std::any_of(targets_.begin(), targets_.end(),
                                 [peer](const Target& target) { return target.peer == peer; });
}

}  // namespace collectives
