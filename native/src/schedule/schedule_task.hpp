// The schedule engine: runs the steps of a schedule over links, which may be of different transports.
//
// Invariant: every step has one watermark, the number of its bytes that are done: received, reduced, copied,
// or sent so that their memory may change again. Steps advance as far as the watermarks of the steps on which
// they depend, so slices flow through dependent steps and no step waits for whole chunks. A step is run only
// while it is the first unfinished step of all its queues.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/types.hpp"
#include "engine/engine.hpp"
#include "link/multicast.hpp"
#include "schedule/access.hpp"
#include "schedule/buffers.hpp"
#include "schedule/relay.hpp"

namespace collectives {

struct ScheduleSettings {
    std::size_t slice = 0;   // most bytes that a reduction processes before other steps get their turn
    std::size_t copied = 0;  // the same for a copy
};
ScheduleSettings settings_for(const Surroundings& surroundings);

class ScheduleTask final : public Task, private Channels {
  public:
    explicit ScheduleTask(const ScheduleSettings& settings) : settings_(settings) {}

    void begin(Request& request, const Position& position) override;
    bool progress() override;
    bool complete() const override { return unfinished_ == 0; }
    void awaited(std::vector<Awaited>& result) override;
    void abandon() override;
    bool reclaim() override;
    void end() override;

    bool waits_for_any() const override { return sender_ < 0 && request_->operation->is_open(); }
    bool depends_on_all() const override {
        return (program().says || program().combines > 0) && !request_->call.is_message();
    }
    bool waits_unseen() const override {
        return request_->transfer != nullptr && request_->transfer->is_coming();
    }
    Channels* channels() override { return this; }

  private:
    using Step = Operation::Task;

    struct State {
        std::uint64_t done = 0;     // the watermark
        std::uint64_t written = 0;  // sends: bytes passed to the link
        std::uint32_t before = 0;   // queues in which other steps come first
        std::uint32_t there = 0;    // reductions: number of the next slice's operands that have arrived
        bool started = false;
        bool complete = false;
    };

    // --- Channels
    std::span<const ChannelUse> uses() const override { return program().channels; }
    bool is_through_with(std::uint32_t channel) const override;
    void block(std::uint32_t step) override;
    void unblock(std::uint32_t step) override;

    // Set the contexts by which links choose how to carry the operation's messages.
    void set_contexts();
    // Start a section of the operation, whose buffers begin at `in` and `out`.
    void begin_section(std::uint64_t section, std::byte* in, std::byte* out);
    void begin_steps();
    bool is_in_sections() const { return request_->operation->sections() > 1; }
    bool is_last_section() const { return section_ + 1 == request_->operation->sections(); }

    bool advance(const Step& step, State& state);
    void start(const Step& step);
    bool is_complete(const Step& step, const State& state);
    // The byte up to which the steps on which it depends let this step advance, in whole elements.
    std::uint64_t limit(const Step& step) const;
    // How many of the first n bytes that the step reads of the caller's memory are there.
    std::uint64_t there(const Step& step, std::uint64_t n) const;

    void send(const Step& step, State& state);
    void recv(const Step& step, State& state);
    void copy(const Step& step, State& state);
    void reduce(const Step& step, State& state);
    // Whether the next bytes of all operands have arrived.
    bool all_there(const Step& step, State& state);
    // The same for elements that links may deliver in parts, which are gathered; makes the list of operands.
    // Returns the number of bytes, at most n, that can be reduced.
    std::uint64_t gather(const Step& step, State& state, std::uint64_t n);
    // Whether elements are longer than those of which links deliver whole ones.
    bool gathers() const { return operation().unit() > largest_scalar; }
    // Whether the next element of the operand has arrived, as far as is known.
    bool is_ready(const Operation::Source& source);
    // Most bytes that a reduction processes at a time: whole elements.
    std::size_t slice() const;
    // Reduce n bytes of `operands_` to `dst`.
    void apply(const Step& step, std::byte* dst, std::size_t n, Stores stores) const;
    // Whether the step's results do not stay in the caches.
    bool is_streamed(const Step& step) const;
    // The kind of stores: streaming for large results that no later step reads.
    Stores stores(const Step& step) const;

    // --- a message whose sender and length are known only when it arrives
    bool receives_message(const Step& step) const {
        return step.kind == StepKind::recv && request_->call.is_message();
    }
    // Returns whether anything moved.
    bool recv_message(const Step& step, State& state);
    // Whether a message has arrived; if so, takes over its sender and length.
    bool meet_message(const Step& step);

    // --- one message to several peers
    void multicast(const Step& step, State& state);

    // --- results that are written straight to the peers' destinations
    // Post destinations for messages that may arrive from the beginning.
    void post_receptions();
    // Whether peers have posted destinations for the result of the step.
    bool relays(const Step& step) const;
    // Reduce n bytes of `operands_` to the result, and to the destinations of the peers.
    void reduce_and_relay(const Step& step, std::uint64_t begin, std::size_t n);
    // Reduce n bytes of `operands_` to all `places_` at once, with streaming stores; false if this is not
    // possible.
    bool spread_streaming(const Step& step, std::size_t n) const;
    // Whether that peer gets the step's message by the relay.
    bool is_relayed(const Step& step, int peer) const;

    const Operation& operation() const { return *operation_; }
    const Program& program() const { return operation_->program(); }
    const std::vector<Step>& steps() const { return operation_->tasks(); }
    std::uint32_t index_of(const Step& step) const {
        return static_cast<std::uint32_t>(&step - steps().data());
    }
    std::byte* at(const Operation::Place& place) const { return buffers_.at(place); }
    Link& link(int peer) const { return *request_->links[static_cast<std::size_t>(peer)]; }
    bool uses_sockets();

    // The beginning of an element, received from a link that has delivered it in parts.
    struct Gathered {
        std::array<std::byte, block_bytes> bytes;
        std::size_t held = 0;
    };
    Gathered& gathered(const Operation::Source& source) {
        return gathered_[static_cast<std::size_t>(&source - operation().sources().data())];
    }

    const ScheduleSettings& settings_;
    Request* request_ = nullptr;
    std::uint64_t section_ = 0;             // the current section
    const Operation* operation_ = nullptr;  // the operation of this section
    Context context_;                       // links keep pointers to it, also between operations
    Context multicast_context_;             // the same, for messages to several peers
    std::optional<bool> sockets_;           // whether it has links over sockets, after the first check
    int sender_ = -1;                       // sender of the message being received, if known
    std::uint64_t message_length_ = 0;      // bytes of this message
    Buffers buffers_;
    Output output_;  // if the request has a Transfer
    std::vector<State> states_;
    std::vector<std::uint32_t> active_;
    std::size_t unfinished_ = 0;

    // Kept between operations to save allocations.
    Relay relay_;
    std::unique_ptr<std::byte[]> relayed_;  // memory for one slice
    std::vector<Link*> posted_;             // links on which destinations are posted
    std::vector<Gathered> gathered_;        // for each operand, if `gathers()`
    std::vector<const std::byte*> operands_;
    std::vector<std::byte*> places_;  // destinations of a relayed slice: this rank's, then the peers'
    std::vector<Multicast::Target> targets_;
    std::vector<std::uint64_t> written_;  // by rank: bytes passed to the link, in the current multicast
};

class ScheduleEngine final : public Engine {
  public:
    explicit ScheduleEngine(const Surroundings& surroundings) : settings_(settings_for(surroundings)) {}
    const char* name() const override { return "schedule"; }
    const char* refuses(const Request& /*request*/) const override { return nullptr; }
    std::unique_ptr<Task> make_task() override { return std::make_unique<ScheduleTask>(settings_); }

  private:
    ScheduleSettings settings_;
};

}  // namespace collectives
