// The entry of an operation on a board: its number, its turn, and the ranks that have published.
//
// Invariant: entries of a board have their turns in the order of their numbers, which are the same on all
// ranks. An entry leaves the board when its operation is complete, is given up, or continues in another
// engine.
#pragma once

#include <span>
#include <vector>

#include "shm/colocated.hpp"

namespace collectives {

class BoardEntry {
  public:
    explicit BoardEntry(Colocated& colocated) : colocated_(colocated) {}

    // Take the next number on the board of the request's root. The request must stay until `leave`.
    void begin(const Request& request);
    void leave();

    bool has_turn() const { return owned_->queue.front() == this; }
    // Find the board's memory; called when the entry has its turn.
    void open();
    // Whether this rank may publish n bytes now; if not, the ranks that must advance first are stored in
    // `late`.
    bool may_publish(std::size_t n, std::vector<int>* late = nullptr) {
        return board().may_publish(number_, n, late);
    }

    // Whether all sources have published. Calls `see(line)` once for each. Throws if one of them is in
    // another operation.
    template <typename See>
    bool have_all_published(See see) {
        const std::span<const int> sources = program().sources;
        const FlatLine* const lines = board().lines(number_);
        for (; seen_ < sources.size(); ++seen_) {
            std::uint32_t fingerprint = 0;
            const FlatLine& line = lines[sources[seen_]];
            if (!MessageBoard::has_published(number_, line, fingerprint)) return false;
            if (fingerprint != request_->fingerprint) {
                colocated_.link(sources[seen_])->calls().throw_other_call(request_->call);
            }
            see(line);
        }
        return true;
    }
    // The sources that have not published, as far as was checked.
    std::span<const int> missing() const { return std::span(program().sources).subspan(seen_); }
    // Whether that rank has still to publish.
    bool is_late(int peer) const;

    // The operation is complete on this rank: publish that, if no other data shows it.
    void finish();
    void wake_sleepers();
    void set_asleep(bool asleep);

    MessageBoard& board() const { return owned_->board; }
    std::uint64_t number() const { return number_; }

  private:
    const Program& program() const { return request_->operation->program(); }

    Colocated& colocated_;
    const Request* request_ = nullptr;
    Colocated::Owned* owned_ = nullptr;  // the root's board; stays as long as the communicator
    std::uint64_t number_ = 0;
    std::size_t seen_ = 0;  // number of sources, in their order, that have published
    bool asleep_ = false;
};

}  // namespace collectives
