#include "link/dial.hpp"

#include <algorithm>

#include "link/frame.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

constexpr auto longest_pause = 500ms;  // between two rounds over the addresses
// Ranks listen before they publish their addresses, so a peer where nothing listens counts as gone after this
// time.
constexpr auto refused_for = 300ms;

ErrorKind kind_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::wrong_proof:
            return ErrorKind::auth;
        case Verdict::other_epoch:
            return ErrorKind::stale_epoch;
        case Verdict::closed:
            return ErrorKind::peer_lost;
        default:
            return ErrorKind::config_mismatch;
    }
}

}  // namespace

const std::string& Dial::next() {
    trying_ = true;
    return addresses_[next_];
}

bool Dial::failed(const Problem& problem) {
    trying_ = false;
    refused_ = refused_ && problem.refused;
    last_ = problem;
    last_.what = addresses_[next_] + ": " + problem.what;
    if (problem.verdict != Verdict::welcome) definite_ = problem;
    again_ = Clock::now();
    if (++next_ < addresses_.size()) return true;
    // A round over all addresses has failed.
    if (definite_.verdict != Verdict::welcome) return false;
    if (refused_ && Clock::now() - first_ > refused_for) return false;
    next_ = 0;
    refused_ = true;
    pause_ = std::clamp<std::chrono::milliseconds>(pause_ * 2, 10ms, longest_pause);
    again_ += pause_;
    return true;
}

Error Dial::error() const {
    std::string message = "no connection to rank " + std::to_string(peer_) + ": ";
    ErrorKind kind = ErrorKind::peer_lost;
    if (definite_.verdict != Verdict::welcome) {
        kind = kind_of(definite_.verdict);
        message += explain(definite_.verdict);
        if (definite_.verdict == Verdict::other_version) {
            message += " (this rank speaks version " + std::to_string(wire_version) + ", the other version " +
                       std::to_string(definite_.version) + ")";
        }
        message += "; ";
    }
    return Error(kind, message + last_.what, {peer_});
}

}  // namespace collectives
