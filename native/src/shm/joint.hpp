// A copy that two processes make together. The receiver reads the front half from the sender's process. The
// back half is copied by the process that is free first; the sender does it by writing to the receiver's
// process.
//
// Invariant: only one process takes the back half. If the sender does not, the receiver copies everything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace collectives {

class JointCopy {
  public:
    // In memory that both share, used for one copy after the other. All zero: there was no copy yet.
    struct Shared {
        std::atomic<std::uint64_t> back;   // the copy's number, and the state of its back half
        std::atomic<std::uint64_t> place;  // the destination's address in the receiver's process
        std::atomic<std::int32_t> grant;   // the id by which the sender may write there, see WriteGrant
    };

    // The copy of that number, which is at least 1.
    JointCopy(Shared& shared, std::uint64_t number) : shared_(shared), number_(number) {}

    // The offset at which the back half of n bytes begins.
    static std::size_t middle(std::size_t n);

    // --- the receiver
    void open(std::uint64_t place, std::int32_t grant);
    // Take the back half for the receiver. False if the sender has taken it.
    bool take_as_receiver() { return move(State::open, State::receiver); }
    // Whether the sender has taken the back half and may still be writing it.
    bool is_being_written() const { return is(State::sender); }
    bool is_written() const { return is(State::written); }

    // --- the sender
    // Take the back half for the sender. False if the copy is not open or the receiver has taken it.
    bool take_as_sender() { return move(State::open, State::sender); }
    std::uint64_t place() const { return shared_.place.load(std::memory_order_relaxed); }
    std::int32_t grant() const { return shared_.grant.load(std::memory_order_relaxed); }
    // The sender has written the back half, or could not: then it is free again.
    void end(bool written);

  private:
    enum class State : std::uint64_t { open, sender, receiver, written };

    std::uint64_t word(State state) const { return number_ << 2 | static_cast<std::uint64_t>(state); }
    bool is(State state) const { return shared_.back.load(std::memory_order_acquire) == word(state); }
    bool move(State from, State to);

    Shared& shared_;
    std::uint64_t number_;
};

}  // namespace collectives
