#include "link/self_link.hpp"

#include <algorithm>
#include <utility>

#include "base/copy.hpp"

namespace collectives {

void SelfLink::begin(const Context& context, std::uint64_t length) {
    length_ = length;
    written_ = 0;
    sent_ = false;
    messages_.push_back({context.call, {}, length});
    messages_.back().bytes.reserve(static_cast<std::size_t>(length));
}

// A message can be received when it is complete.
std::size_t SelfLink::write(const std::byte* data, std::size_t n) {
    std::vector<std::byte>& bytes = messages_.back().bytes;
    bytes.insert(bytes.end(), data, data + n);
    written_ += n;
    sent_ = true;
    return n;
}

std::optional<Announcement> SelfLink::announced(const Context&, std::size_t) {
    if (messages_.empty()) return std::nullopt;
    const Message& first = messages_.front();
    if (first.bytes.size() < first.length || (&first == &messages_.back() && !sent_)) return std::nullopt;
    return Announcement{first.call, first.length, true};
}

void SelfLink::expect(const Context&, std::uint64_t length) {
    open_ = std::move(messages_.front());
    messages_.pop_front();
    expected_length_ = length;
    taken_ = 0;
}

std::span<const std::byte> SelfLink::next() const {
    return std::span(open_.bytes).subspan(static_cast<std::size_t>(taken_));
}

std::size_t SelfLink::read(std::byte* data, std::size_t n, Stores) {
    const std::span<const std::byte> from = next();
    n = std::min(n, from.size());
    if (n > 0) copy_bytes(data, from.data(), n);
    consume(n);
    return n;
}

std::span<const std::byte> SelfLink::lend(std::size_t) { return next(); }

void SelfLink::consume(std::size_t n) {
    taken_ += n;
    if (received()) open_ = {};
}

bool SelfLink::ready(std::size_t) { return true; }

}  // namespace collectives
