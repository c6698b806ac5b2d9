// The progress of a long message in parts, each of which uses one of several lanes.
//
// Invariant: all parts but the last have the same size, whole elements of any type. Parts are given to lanes
// in their order; a lane gets the next part when it has finished one, so a faster lane gets more parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace collectives {

class Parts {
  public:
    static constexpr std::uint64_t size = 96 << 10;
    static constexpr std::uint32_t none = ~std::uint32_t{0};

    explicit Parts(std::size_t lanes) : on_lane_(lanes, none) {}

    // Start a message of `length` bytes; the previous message must be complete.
    void begin(std::uint64_t length) {
        total_ = length;
        done_.assign(static_cast<std::size_t>((length + size - 1) / size), 0);
        front_ = next_ = 0;
    }

    std::uint32_t count() const { return static_cast<std::uint32_t>(done_.size()); }
    std::uint64_t length(std::uint32_t part) const {
        return part + 1 < count() ? size : total_ - std::uint64_t{part} * size;
    }
    // The position in the message of the part's next byte.
    std::uint64_t position(std::uint32_t part) const { return std::uint64_t{part} * size + done_[part]; }
    std::uint64_t left(std::uint32_t part) const { return length(part) - done_[part]; }
    // The number of bytes, from the beginning of the message without gaps, that are done.
    std::uint64_t through() const { return front_ < count() ? position(front_) : total_; }
    bool complete() const { return front_ == count(); }

    // The current part of a lane, or `none`.
    std::uint32_t on(std::size_t lane) const { return on_lane_[lane]; }
    // The first part that no lane has had, or `none`.
    std::uint32_t next() const { return next_ < count() ? next_ : none; }
    void take_next(std::size_t lane) { on_lane_[lane] = next_++; }
    // Give that part to the lane. False if there is no such part, or if a lane has had it.
    bool take(std::size_t lane, std::uint32_t part) {
        if (part >= count() || done_[part] > 0) return false;
        for (const std::uint32_t other : on_lane_) {
            if (other == part) return false;
        }
        on_lane_[lane] = part;
        return true;
    }
    // The lane with the first incomplete part, or the number of lanes if no lane has it.
    std::size_t lane_in_front() const {
        std::size_t lane = 0;
        while (lane < on_lane_.size() && (on_lane_[lane] != front_ || complete())) ++lane;
        return lane;
    }
    // n more bytes of the lane's part are done. Returns whether the part is complete, so that the lane is
    // free.
    bool advance(std::size_t lane, std::size_t n) {
        const std::uint32_t part = on_lane_[lane];
        done_[part] += n;
        if (left(part) > 0) return false;
        on_lane_[lane] = none;
        while (front_ < count() && left(front_) == 0) ++front_;
        return true;
    }

  private:
    std::uint64_t total_ = 0;
    std::vector<std::uint64_t> done_;  // bytes that are done, by part
    std::uint32_t front_ = 0;
    std::uint32_t next_ = 0;
    std::vector<std::uint32_t> on_lane_;
};

}  // namespace collectives
