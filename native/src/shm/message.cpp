// The head of a message from one rank to another: a line before the message with its call and its length.
#include <cstring>

#include "shm/link.hpp"

namespace collectives {

namespace {

struct Head {
    Call call;
    std::uint64_t length = 0;
};
static_assert(sizeof(Head) <= Line::inline_bytes);

// The fingerprint of all heads of that epoch, since receivers do not know the call before they read the head.
std::uint32_t fingerprint_of_heads(std::uint32_t epoch) {
    Call call;
    call.collective = static_cast<std::uint8_t>(Collective::send);
    call.algorithm = ~std::uint32_t{0};  // a value that no message has
    call.epoch = epoch;
    return call.fingerprint();
}

}  // namespace

bool ShmLink::head() {
    if (!has_line()) return false;
    Line& line = next_line();
    const Head head{sending_->call, length_};
    std::memcpy(line.data.data(), &head, sizeof(head));
    line.tag.store(line_ << 32 | fingerprint_of_heads(sending_->call.epoch), std::memory_order_release);
    headed_ = true;
    return true;
}

std::optional<Announcement> ShmLink::announced(const Context& context, std::size_t) {
    const Line& line = in_.lines[line_in_ % lines_per_link];
    const std::uint64_t tag = line.tag.load(std::memory_order_seq_cst);
    if (tag >> 32 != (line_in_ & 0xffffffff)) return std::nullopt;
    if (static_cast<std::uint32_t>(tag) != fingerprint_of_heads(context.call.epoch)) {
        return Announcement{calls_.instead_of(context.call), 0, false};
    }
    Head head;
    std::memcpy(&head, line.data.data(), sizeof(head));
    return Announcement{head.call, head.length, true};
}

// Quietly: the lines of the message itself are acknowledged, or they are few.
void ShmLink::consume_head() { pass_line(true); }

}  // namespace collectives
