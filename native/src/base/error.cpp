#include "base/error.hpp"

#include <system_error>

namespace collectives {

std::string name_ranks(const std::vector<int>& ranks) {
    if (ranks.empty()) return "no rank";
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    return text;
}

Error of_rank(int rank, const Error& error) {
    return {error.kind(), "rank " + std::to_string(rank) + ": " + error.what(), error.ranks(),
            error.finder()};
}

std::string errno_text(int code) { return std::generic_category().message(code); }

void throw_system(const char* call, int code) {
    throw Error(ErrorKind::transport_unavailable, std::string(call) + ": " + errno_text(code));
}

}  // namespace collectives
