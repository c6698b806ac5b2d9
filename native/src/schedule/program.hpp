// Programs and operations. A program is a schedule as flat records over blocks; an operation is a program
// bound to an element type, a reduction and sizes in bytes.
//
// Invariant: both are checked when they are built and never change, so the executor checks nothing. A program
// has no sizes, an operation has no addresses.
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

// The largest number of bytes, in and out, of an operation that runs as a Flat.
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

// An operand of a reduction: a peer's next message, or local data.
struct Operand {
    int peer = -1;
    Chunk chunk;
};

// The step that has this dependency may process byte x of the buffer only after `step` has. The region of
// `step` in the buffer starts at block `there`, the region of the step that waits at block `here`.
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
    std::vector<int> peers;         // for a send all receivers; for a receive, it is from one of them
    std::vector<Operand> operands;  // for a reduction and a copy
    std::vector<Dependency> dependencies;
};

// An exchange in one round: each rank that publishes sends `said` to all ranks that receive. This rank takes
// the part `taken` of each message.
struct Exchange {
    Chunk said;
    Chunk taken;
};

struct Block {
    int buffer = 0;
    std::uint32_t index = 0;
};

struct Program {
    // Throws Error(invalid) if a step names a rank, block, buffer or step that does not exist.
    Program(int rank, int size, std::uint32_t in_blocks, std::uint32_t out_blocks,
            std::vector<std::vector<Block>> scratch, std::vector<Step> steps, bool pooled = false,
            std::optional<Exchange> flat = std::nullopt);

    int rank;
    int size;
    std::uint32_t in_blocks;
    std::uint32_t out_blocks;
    std::vector<std::vector<Block>> scratch;
    std::vector<Step> steps;
    std::vector<int> peers;        // all ranks with which messages are exchanged, ascending
    bool pooled = false;           // ranks that share memory may run it in the pool
    bool says = false;             // this rank sends something
    std::vector<int> sources;      // all ranks from which messages are received, ascending
    std::optional<Exchange> flat;  // ranks that share memory may run it on a board
    std::size_t combines = 0;      // the largest number of messages that one step reduces

    std::vector<ChannelUse> channels;  // ascending
    const ChannelUse* use_of(std::uint32_t channel) const;

    // The number of a message in one direction of a link, from 1 on; 0: none.
    using Ordinal = std::uint32_t;
    // A reduction whose result is sent on, and the messages that carry the result.
    struct Relay {
        struct Message {
            int peer = -1;
            Ordinal ordinal = 0;
            Ordinal read = 0;  // the message from that peer that the reduction reads
        };
        std::uint32_t reduction = 0;
        std::uint32_t send = 0;
        std::vector<Message> messages;
    };
    std::optional<Relay> relay;  // the first one in the program
    // Whether one step sends what another step copies, and neither waits for anything.
    bool keeps_what_it_sends = false;
    // Receptions that wait for no step, or only until the peer has read the message that is sent from the
    // same memory.
    struct Reception {
        std::uint32_t step = 0;
        int peer = -1;
        Ordinal ordinal = 0;
        Ordinal replaces = 0;  // the message to that peer that is sent from there; 0: none
    };
    std::vector<Reception> receptions;

    // The order of steps that use the same channel (see ChannelUse), each a queue: the steps that become the
    // first of a queue when step i is complete, and the number of queues in which step i is not the first.
    std::vector<std::vector<std::uint32_t>> successors;
    // Whether a later step depends on the result of step i.
    std::vector<bool> needed;
    std::vector<std::uint32_t> predecessors;

  private:
    void check(std::uint32_t index);
    void check_flat() const;
    // `ordinals`: for each step its messages' numbers, in the order of its queues.
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
    // By ascending offsets, one more than there are blocks.
    explicit Bounds(std::vector<std::uint64_t> offsets) : offsets_(std::move(offsets)), even_(false) {}

    std::uint64_t at(std::uint32_t block) const { return offsets_[block]; }
    std::uint64_t total() const { return offsets_.back(); }
    std::uint32_t blocks() const { return static_cast<std::uint32_t>(offsets_.size()) - 1; }
    // Whether the blocks are equal shares, and so the same on every rank.
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
        std::int64_t delta = 0;  // byte x of the waiting task needs byte x - delta of `task`
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
        std::uint64_t length = 0;  // bytes of `said`
        std::uint64_t taken = 0;   // offset in a message of the part that this rank takes
        std::uint64_t part = 0;    // bytes of this part
    };

    // A whole call, or one of several messages that make up a collective with a reduction by the caller's own
    // function: the first message, which counts as the call, or another one.
    enum class Part : std::uint8_t { whole, first, other };

    // Bytes that this rank sends to all its peers, and receives from them.
    struct Traffic {
        std::uint64_t sent = 0;
        std::uint64_t received = 0;
    };

    Operation(std::shared_ptr<const Program> program, DType dtype, Op op, const Bounds& in, const Bounds& out,
              const Call& call, Part part = Part::whole);
    Operation(Operation&&) = default;  // tasks point to memory of vectors, which a move keeps
    // An operation on n elements of each buffer, in sections of at most `at_a_time` elements (at least 1).
    // The whole program runs on a section before the next one begins, so it must process each element
    // independently.
    static Operation in_sections(const std::shared_ptr<const Program>& program, DType dtype, Op op,
                                 std::uint64_t n, std::uint64_t at_a_time, const Call& call);

    const Program& program() const { return *program_; }
    DType dtype() const { return dtype_; }
    Op op() const { return op_; }
    // The operands of all tasks, in the order of the tasks.
    std::span<const Source> sources() const { return sources_; }
    std::size_t unit() const { return unit_; }
    // The factor of a final reduction for an average: one over the number of ranks.
    double scale() const { return scale_; }
    // If the operands are sums already: the number of ranks that they are of.
    void set_divisor(std::uint64_t divisor) { scale_ = 1.0 / static_cast<double>(divisor); }
    // The kernel for its reductions; null if `op` has no meaning for the element type.
    ReduceFn kernel(Stores stores) const { return kernels_[static_cast<std::size_t>(stores)]; }
    // The kernel that stores results to several destinations, or null.
    SpreadFn spread() const { return spread_; }
    std::uint64_t in_bytes() const { return in_bytes_; }
    std::uint64_t out_bytes() const { return out_bytes_; }
    // Bytes of the results of the whole call, if the call consists of several operations; else `out_bytes`.
    std::uint64_t call_bytes() const { return std::max(call_bytes_, out_bytes_); }
    void set_call_bytes(std::uint64_t bytes) { call_bytes_ = bytes; }
    std::uint64_t scratch_bytes() const { return scratch_bytes_; }
    std::span<const std::uint64_t> scratch_offsets() const { return scratch_offsets_; }
    const std::vector<Task>& tasks() const { return tasks_; }
    // Set if it may run on a board; this is the same on all ranks.
    const std::optional<Flat>& flat() const { return flat_; }
    const Call& call() const { return call_; }
    const Traffic& traffic() const { return traffic_; }
    // Bytes of memory that it takes, its program included, without the allocator's overhead.
    std::size_t memory() const;
    Part part() const { return part_; }
    // Whether it receives a message from any of several ranks.
    bool is_open() const {
        return call_.is_message() && program_->steps[0].kind == StepKind::recv && program_->peers.size() > 1;
    }

    // The number of sections: 1 if it is not divided. All but the last have the same size.
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
    std::uint64_t call_bytes_ = 0;
    std::uint64_t scratch_bytes_ = 0;
    std::vector<std::uint64_t> scratch_offsets_;  // where each slot begins in the scratch memory
    std::vector<Source> sources_;
    std::vector<Gate> gates_;
    std::vector<Task> tasks_;
    std::optional<Flat> flat_;
    Call call_;
    Part part_ = Part::whole;
    Traffic traffic_;
    // For an operation in sections, which has no tasks of its own.
    std::uint64_t alike_ = 0;
    std::shared_ptr<const Operation> section_;
    std::shared_ptr<const Operation> last_;
};

}  // namespace collectives
