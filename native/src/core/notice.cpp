#include "core/notice.hpp"

#include <algorithm>
#include <cstring>

namespace collectives {

namespace {

constexpr std::uint32_t notice_magic = 0x4e465950;  // "PYFN"
constexpr std::size_t most_ranks = 64;
constexpr std::size_t longest_text = 1024;

struct Head {
    std::uint32_t magic = notice_magic;
    std::uint8_t kind = 0;
    std::uint8_t error = 0;
    std::uint16_t text = 0;  // bytes
    std::int32_t origin = -1;
    std::uint32_t number = 0;
    std::int32_t subject = -1;
    std::uint32_t fingerprint = 0;
    GroupId group{};
    Call call;
    std::uint32_t ranks = 0;
    std::uint32_t unused = 0;
};
static_assert(sizeof(Head) == 80);
static_assert(sizeof(Head) + most_ranks * sizeof(std::int32_t) + longest_text <= longest_notice);

// The beginning of a text, without a part of a UTF-8 character at the end.
std::string_view beginning(const std::string& text) {
    std::size_t n = std::min(text.size(), longest_text);
    while (n > 0 && n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0U) == 0x80U) --n;
    return {text.data(), n};
}

}  // namespace

std::vector<std::byte> encode(const Notice& notice) {
    const std::string_view text = beginning(notice.text);
    const std::size_t n_ranks = std::min(notice.ranks.size(), most_ranks);
    Head head;
    head.kind = static_cast<std::uint8_t>(notice.kind);
    head.error = static_cast<std::uint8_t>(notice.error);
    head.text = static_cast<std::uint16_t>(text.size());
    head.origin = notice.origin;
    head.number = notice.number;
    head.subject = notice.subject;
    head.fingerprint = notice.fingerprint;
    head.group = notice.group;
    head.call = notice.call;
    head.ranks = static_cast<std::uint32_t>(n_ranks);
    const std::size_t behind_ranks = sizeof(Head) + n_ranks * sizeof(std::int32_t);
    std::vector<std::byte> bytes(behind_ranks + text.size());
    std::memcpy(bytes.data(), &head, sizeof(head));
    std::copy_n(notice.ranks.begin(), n_ranks, reinterpret_cast<std::int32_t*>(bytes.data() + sizeof(Head)));
    std::memcpy(bytes.data() + behind_ranks, text.data(), text.size());
    return bytes;
}

Decoded decode(std::span<const std::byte> bytes, int size) {
    Head head;
    if (bytes.size() < sizeof(head)) return {};
    std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof(head));
    const auto is_rank = [&](std::int32_t rank) { return rank >= -1 && rank < size; };
    const bool is_known = head.kind >= static_cast<std::uint8_t>(Notice::Kind::beat) &&
                          head.kind <= static_cast<std::uint8_t>(Notice::Kind::late) &&
                          head.error <= static_cast<std::uint8_t>(ErrorKind::interrupted);
    if (head.magic != notice_magic || !is_known || head.ranks > most_ranks || head.text > longest_text ||
        !is_rank(head.origin) || !is_rank(head.subject)) {
        throw Error(ErrorKind::invalid, "it sent a notice that is not ours");
    }
    const std::size_t behind_ranks = sizeof(Head) + head.ranks * sizeof(std::int32_t);
    if (bytes.size() < behind_ranks + head.text) return {};
    Notice notice;
    notice.kind = static_cast<Notice::Kind>(head.kind);
    notice.error = static_cast<ErrorKind>(head.error);
    notice.origin = head.origin;
    notice.number = head.number;
    notice.subject = head.subject;
    notice.fingerprint = head.fingerprint;
    notice.group = head.group;
    notice.call = head.call;
    std::vector<std::int32_t> ranks(head.ranks);
    if (!ranks.empty()) {
        std::memcpy(ranks.data(), bytes.data() + sizeof(Head), ranks.size() * sizeof(std::int32_t));
    }
    if (!std::ranges::all_of(ranks, is_rank)) {
        throw Error(ErrorKind::invalid, "it sent a notice about ranks that do not exist");
    }
    notice.ranks.assign(ranks.begin(), ranks.end());
    notice.text.assign(reinterpret_cast<const char*>(bytes.data() + behind_ranks), head.text);
    return {std::move(notice), behind_ranks + head.text};
}

}  // namespace collectives
