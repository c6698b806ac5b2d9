// A ring in the receiver's memory, into which the sender writes records, and the credits that the receiver
// returns. Both ends compute with the same positions, so that none is ever sent.
//
// Positions count units from the beginning of the link, and never wrap; a record lies in one piece, so it
// begins at the start of the ring if it does not fit before the end. Each record also takes a slot: a receive
// that the receiver has posted. Space is returned when the record is consumed, a slot when its receive has
// been posted again. Grants and pieces of messages, which do not go through the ring, take a slot only.
//
// Invariant: a sender never has more space or slots in use than the receiver has granted, so no record
// overwrites another one, and none finds the receiver without a receive. An immediate that carries credits
// only takes a receive, too, but no slot. A receiver sends one only after half of the space or half of the
// slots has become free since the last report, and these were in use: so no more than four are under way
// (`reports_under_way`), for which it posts receives beyond the slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace collectives::verbs {

inline constexpr std::size_t unit_bytes = 64;
inline constexpr std::uint32_t reports_under_way = 4;

constexpr std::uint64_t units(std::size_t bytes) { return (bytes + unit_bytes - 1) / unit_bytes; }

// The position of a record of `n` units that follows position `head`, in a ring of `size` units.
constexpr std::uint64_t position_after(std::uint64_t head, std::uint64_t n, std::uint64_t size) {
    const std::uint64_t left = size - head % size;
    return n <= left ? head : head + left;
}

// What comes with an immediate.
enum class Carried : std::uint8_t {
    credits,  // nothing
    record,   // a record in the ring
    piece,    // a piece of a message, in its destination
    grant,    // a grant, in its place behind the ring
};

// What an immediate says: what comes with it, and how much the receiver of the other direction has freed
// since the beginning of the link, modulo the range of the field.
struct Immediate {
    static constexpr std::uint32_t kind_bits = 2;
    static constexpr std::uint32_t space_bits = 19;
    static constexpr std::uint32_t slot_bits = 11;
    static constexpr std::uint64_t space_range = std::uint64_t{1} << space_bits;
    static constexpr std::uint64_t slot_range = std::uint64_t{1} << slot_bits;

    Carried carried = Carried::credits;
    std::uint64_t space = 0;
    std::uint64_t slots = 0;

    constexpr std::uint32_t encode() const {
        return static_cast<std::uint32_t>(carried) |
               static_cast<std::uint32_t>(space % space_range) << kind_bits |
               static_cast<std::uint32_t>(slots % slot_range) << (kind_bits + space_bits);
    }
    static constexpr Immediate decode(std::uint32_t word) {
        return {static_cast<Carried>(word & ((1U << kind_bits) - 1)), word >> kind_bits & (space_range - 1),
                word >> (kind_bits + space_bits)};
    }
};

// The sender's end.
class SendRing {
  public:
    SendRing() = default;
    SendRing(std::uint64_t size, std::uint64_t slots) : size_(size), slots_(slots) {}

    // Take space and a slot for a record of so many bytes; returns its position, nothing if either is
    // lacking.
    std::optional<std::uint64_t> take(std::size_t bytes) {
        const std::uint64_t n = units(bytes);
        const std::uint64_t position = position_after(head_, n, size_);
        if (position + n - freed_ > size_ || !take_slot()) return std::nullopt;
        head_ = position + n;
        return position;
    }
    // Take a slot alone. False if there is none.
    bool take_slot() {
        if (sent_ - returned_ >= slots_) return false;
        ++sent_;
        return true;
    }
    // Take note of what the receiver has freed. False if that was not in use.
    bool credit(const Immediate& said) {
        const std::uint64_t space = (said.space - freed_) % Immediate::space_range;
        const std::uint64_t slots = (said.slots - returned_) % Immediate::slot_range;
        if (space > head_ - freed_ || slots > sent_ - returned_) return false;
        freed_ += space;
        returned_ += slots;
        return true;
    }
    // Bytes from the beginning of the ring.
    std::size_t offset(std::uint64_t position) const {
        return static_cast<std::size_t>(position % size_) * unit_bytes;
    }
    std::uint64_t sent() const { return sent_; }  // records, and what else took a slot

  private:
    std::uint64_t size_ = 0;
    std::uint64_t slots_ = 0;
    std::uint64_t head_ = 0;   // the end of the last record
    std::uint64_t freed_ = 0;  // space before this position is free again
    std::uint64_t sent_ = 0;
    std::uint64_t returned_ = 0;
};

// The receiver's end.
class ReceiveRing {
  public:
    ReceiveRing(std::uint64_t size, std::uint64_t slots) : size_(size), slots_(slots) {}

    // A record of so many bytes has arrived. False if it does not fit into the space that was free.
    bool arrive(std::size_t bytes) {
        const std::uint64_t n = units(bytes);
        const std::uint64_t position = position_after(head_, n, size_);
        if (n == 0 || position + n - freed_ > size_) return false;
        head_ = position + n;
        ++arrived_;
        ++records_;
        return true;
    }
    // Something else that took a slot has arrived.
    void arrive() { ++arrived_; }
    // The position of the next record, after the last one that was consumed, if it has so many bytes.
    std::uint64_t next(std::size_t bytes) const { return position_after(freed_, units(bytes), size_); }
    // The next record, of so many bytes, is consumed.
    void consume(std::size_t bytes) { freed_ = next(bytes) + units(bytes); }
    // So many receives that took a slot were posted again.
    void repost(std::uint64_t n) { returned_ += n; }

    // Whether the sender has to be told of what is free, even if nothing else is sent to it.
    bool is_due() const { return freed_ - told_space_ >= size_ / 2 || returned_ - told_slots_ >= slots_ / 2; }
    // What to say about what is free; the caller sends it.
    Immediate tell(Carried carried) {
        told_space_ = freed_;
        told_slots_ = returned_;
        return {carried, freed_, returned_};
    }

    std::size_t offset(std::uint64_t position) const {
        return static_cast<std::size_t>(position % size_) * unit_bytes;
    }
    std::uint64_t arrived() const { return arrived_; }  // records, and what else took a slot
    std::uint64_t records() const { return records_; }  // that have arrived
    std::uint64_t size() const { return size_; }

  private:
    std::uint64_t size_;
    std::uint64_t slots_;
    std::uint64_t head_ = 0;   // the end of the last record that has arrived
    std::uint64_t freed_ = 0;  // the end of the last record that was consumed
    std::uint64_t arrived_ = 0;
    std::uint64_t records_ = 0;
    std::uint64_t returned_ = 0;
    std::uint64_t told_space_ = 0;
    std::uint64_t told_slots_ = 0;
};

}  // namespace collectives::verbs
