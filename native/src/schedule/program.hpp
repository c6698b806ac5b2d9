// A schedule in the form the executor runs: flat records, first over blocks, then bound to bytes.
//
// Invariant: both are immutable once built and checked when built, so the executor checks nothing. A program
// knows no sizes; an operation adds element type, reduction and sizes, but no addresses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "engine/task.hpp"
#include "link/frame.hpp"
#include "link/link.hpp"
#include "reduce/reduce.hpp"

namespace collectives {

enum class StepKind : std::uint8_t { send, recv, reduce, copy };

// The most bytes, in and out, of an operation that is done in a Flat.
inline constexpr std::uint64_t most_flat = 256 << 10;

inline constexpr int buffer_in = 0;
inline constexpr int buffer_out = 1;
inline constexpr int buffer_scratch = 2;

struct Chunk {
    int buffer = 0;
    std::uint32_t first = 0;
    std::uint32_t count = 0;

    bool operator==(const Chunk&) const = default;
};

// What a reduction takes: a peer's next message, or local data.
struct Operand {
    int peer = -1;
    Chunk chunk;
};

// At byte x of the buffer only after `step`, whose region there starts at block `there`, has been up to x;
// the region of the step that waits starts at block `here`.
struct Dependency {
    std::uint32_t step = 0;
    int buffer = 0;
    std::uint32_t there = 0;
    std::uint32_t here = 0;
};

struct Step {
    StepKind kind = StepKind::copy;
    bool final = false;
    Chunk dst;                      // for a send: the source
    std::vector<int> peers;         // for a send, and for a receive: from one of them
    std::vector<Operand> operands;  // for a reduction and a copy
    std::vector<Dependency> dependencies;
};

// What every rank that says anything says to all others, and which part of it this rank takes of each.
struct Exchange {
    Chunk said;
    Chunk taken;
};

struct Block {
    int buffer = 0;
    std::uint32_t index = 0;
};

struct Program {
    // Throws Error(invalid) on a step that names a rank, block, buffer or step that is not there.
    Program(int rank, int size, std::uint32_t in_blocks, std::uint32_t out_blocks,
            std::vector<std::vector<Block>> scratch, std::vector<Step> steps, bool pooled = false,
            std::optional<Exchange> flat = std::nullopt);

    int rank;
    int size;
    std::uint32_t in_blocks;
    std::uint32_t out_blocks;
    std::vector<std::vector<Block>> scratch;
    std::vector<Step> steps;
    std::vector<int> peers;        // all that it exchanges messages with, ascending
    bool pooled = false;           // ranks that share memory may do it in a Pool
    bool says = false;             // sends anything
    std::vector<int> sources;      // peers that it receives from, ascending
    std::optional<Exchange> flat;  // ranks that share memory may do it in a Flat
    std::size_t combines = 0;      // how many messages a step reduces at once, at most

    std::vector<ChannelUse> channels;  // ascending
    const ChannelUse* use_of(std::uint32_t channel) const;

    // Which message of one direction of a link: 1 + how many come before; 0: none.
    using Ordinal = std::uint32_t;
    // A reduction whose result is sent on, and the messages that do.
    struct Relay {
        struct Message {
            int peer = -1;
            Ordinal ordinal = 0;
            Ordinal read = 0;  // of those from the peer, the one that the reduction takes
        };
        std::uint32_t reduction = 0;
        std::uint32_t send = 0;
        std::vector<Message> messages;
    };
    std::optional<Relay> relay;  // the first there is
    // One step sends what another one copies, and neither waits for anything.
    bool keeps_what_it_sends = false;
    // Receptions that wait for nothing, or only until the peer has read what lies at their place.
    struct Reception {
        std::uint32_t step = 0;
        int peer = -1;
        Ordinal ordinal = 0;
        Ordinal replaces = 0;  // of those to the peer, the one that is sent from there
    };
    std::vector<Reception> receptions;

    // Order beyond the data: the tasks that become heads of a queue when step i is complete, and the number
    // of queues in which it has others before it.
    std::vector<std::vector<std::uint32_t>> successors;
    // Whether a later step depends on what step i leaves behind.
    std::vector<bool> needed;
    std::vector<std::uint32_t> predecessors;

  private:
    void check(std::uint32_t index);
    void check_flat() const;
    // `ordinals`: of each step, in the order of its queues.
    void find_relay(std::uint32_t send, const std::vector<std::vector<Ordinal>>& ordinals);
    void find_reception(std::uint32_t recv, const std::vector<std::vector<Ordinal>>& ordinals);
    bool finds_kept_send() const;
    std::uint32_t blocks_of(int buffer) const;
};

// Offsets, in elements, at which the blocks of IN or OUT begin and end.
class Bounds {
  public:
    // n elements in equal shares: block b of B covers [n*b/B, n*(b+1)/B).
    Bounds(std::uint64_t n, std::uint32_t blocks);
    // Given ascending offsets, one more than there are blocks.
    explicit Bounds(std::vector<std::uint64_t> offsets) : offsets_(std::move(offsets)), even_(false) {}

    std::uint64_t at(std::uint32_t block) const { return offsets_[block]; }
    std::uint64_t total() const { return offsets_.back(); }
    std::uint32_t blocks() const { return static_cast<std::uint32_t>(offsets_.size()) - 1; }
    // Whether they are equal shares, and so the same on every rank.
    bool are_even() const { return even_; }

  private:
    std::vector<std::uint64_t> offsets_;
    bool even_ = true;
};

class Operation {
  public:
    // Where data lies: byte `offset` of a buffer.
    struct Place {
        int buffer = 0;
        std::uint64_t offset = 0;
    };
    struct Source {
        int peer = -1;
        Place place;
    };
    struct Gate {
        std::uint32_t task = 0;
        std::int64_t delta = 0;  // this task's byte x has to wait for the other's byte x - delta
    };
    struct Task {
        StepKind kind = StepKind::copy;
        bool final = false;
        std::uint64_t length = 0;
        Place dst;
        std::span<const int> peers;
        std::span<const Source> sources;
        std::span<const Gate> gates;
    };

    // An Exchange in bytes.
    struct Flat {
        Place said;
        std::uint64_t length = 0;  // of what is said
        std::uint64_t taken = 0;   // where in it the part begins that this rank takes
        std::uint64_t part = 0;    // and its length
    };

    // Whether it is a call by itself, or one of the messages of a collective whose reductions the caller
    // makes: the first one, which counts as a call, or another.
    enum class Part : std::uint8_t { whole, first, other };

    // Bytes that this rank sends to all its peers, and gets of them.
    struct Traffic {
        std::uint64_t sent = 0;
        std::uint64_t received = 0;
    };

    Operation(std::shared_ptr<const Program> program, DType dtype, Op op, const Bounds& in, const Bounds& out,
              const Call& call, Part part = Part::whole);
    Operation(Operation&&) = default;  // tasks refer to its memory, which moves with it
    // One on n elements of each buffer, that goes from section to section of at most `at_a_time`, a program's
    // whole work on each before the next: for what happens to each element alone. `at_a_time`: at least 1.
    static Operation in_sections(const std::shared_ptr<const Program>& program, DType dtype, Op op,
                                 std::uint64_t n, std::uint64_t at_a_time, const Call& call);

    const Program& program() const { return *program_; }
    DType dtype() const { return dtype_; }
    Op op() const { return op_; }
    std::size_t unit() const { return unit_; }
    // What a final reduction multiplies with, for an average: one over the number of ranks.
    double scale() const { return scale_; }
    // What reduces its elements; null where `op` has no meaning for them.
    ReduceFn kernel(Stores stores) const { return kernels_[static_cast<std::size_t>(stores)]; }
    // The same to several places, or null.
    SpreadFn spread() const { return spread_; }
    std::uint64_t in_bytes() const { return in_bytes_; }
    std::uint64_t out_bytes() const { return out_bytes_; }
    std::uint64_t scratch_bytes() const { return scratch_bytes_; }
    std::span<const std::uint64_t> scratch_offsets() const { return scratch_offsets_; }
    const std::vector<Task>& tasks() const { return tasks_; }
    // Where it may be done in a Flat: all ranks know alike.
    const std::optional<Flat>& flat() const { return flat_; }
    const Call& call() const { return call_; }
    const Traffic& traffic() const { return traffic_; }
    // What it takes, with its program, without what the allocator adds.
    std::size_t memory() const;
    Part part() const { return part_; }
    // Whether it receives a message from whichever of several ranks sends one.
    bool is_open() const {
        return call_.is_message() && program_->steps[0].kind == StepKind::recv && program_->peers.size() > 1;
    }

    // How many sections it has: at least 1, itself. All but the last are alike.
    std::uint64_t sections() const { return alike_ + 1; }
    const Operation& section(std::uint64_t i) const {
        return i < alike_ ? *section_ : last_ != nullptr ? *last_ : *this;
    }

  private:
    std::shared_ptr<const Program> program_;
    double scale_ = 1.0 / program_->size;
    DType dtype_;
    Op op_;
    std::size_t unit_;
    std::array<ReduceFn, 2> kernels_;  // by Stores
    SpreadFn spread_;
    std::uint64_t in_bytes_;
    std::uint64_t out_bytes_;
    std::uint64_t scratch_bytes_ = 0;
    std::vector<std::uint64_t> scratch_offsets_;  // where each slot begins in the scratch memory
    std::vector<Source> sources_;
    std::vector<Gate> gates_;
    std::vector<Task> tasks_;
    std::optional<Flat> flat_;
    Call call_;
    Part part_ = Part::whole;
    Traffic traffic_;
    // Of one in sections, which has no tasks of its own.
    std::uint64_t alike_ = 0;
    std::shared_ptr<const Operation> section_;
    std::shared_ptr<const Operation> last_;
};

}  // namespace collectives
