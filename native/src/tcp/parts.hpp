// A long message in parts, each of which comes over one of several lanes: how far each of them is.
//
// Invariant: parts are of equal size, the last one aside, in whole elements of any type; lanes take them in
// their order, each its next as soon as it is through with one, so that a faster lane takes more of them.
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

    // A message of `length` bytes; the one before is through.
    void begin(std::uint64_t length) {
        total_ = length;
        done_.assign(static_cast<std::size_t>((length + size - 1) / size), 0);
        front_ = next_ = 0;
    }

    std::uint32_t count() const { return static_cast<std::uint32_t>(done_.size()); }
    std::uint64_t length(std::uint32_t part) const {
        return part + 1 < count() ? size : total_ - std::uint64_t{part} * size;
    }
    // Where in the message the part's next byte belongs.
    std::uint64_t position(std::uint32_t part) const { return std::uint64_t{part} * size + done_[part]; }
    std::uint64_t left(std::uint32_t part) const { return length(part) - done_[part]; }
    // So many bytes of the message, from the first one on, are through.
    std::uint64_t through() const { return front_ < count() ? position(front_) : total_; }
    bool complete() const { return front_ == count(); }

    // The part that a lane has, or none.
    std::uint32_t on(std::size_t lane) const { return on_lane_[lane]; }
    // The first part that no lane has had, none where there is no such.
    std::uint32_t next() const { return next_ < count() ? next_ : none; }
    void take_next(std::size_t lane) { on_lane_[lane] = next_++; }
    // Whether that can be: the part is there, and nobody has had it.
    bool take(std::size_t lane, std::uint32_t part) {
        if (part >= count() || done_[part] > 0) return false;
        for (const std::uint32_t other : on_lane_) {
            if (other == part) return false;
        }
        on_lane_[lane] = part;
        return true;
    }
    // The lane that has the first part not through yet, or the number of lanes.
    std::size_t lane_in_front() const {
        std::size_t lane = 0;
        while (lane < on_lane_.size() && (on_lane_[lane] != front_ || complete())) ++lane;
        return lane;
    }
    // n more bytes of the lane's part; whether that is all of it, and so the lane free again.
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
    std::vector<std::uint64_t> done_;  // bytes, by part
    std::uint32_t front_ = 0;
    std::uint32_t next_ = 0;
    std::vector<std::uint32_t> on_lane_;
};

}  // namespace collectives
