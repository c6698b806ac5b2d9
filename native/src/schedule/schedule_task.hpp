// The schedule engine: runs the steps of a schedule over links, any mix of them.
//
// Invariant: every step has one watermark, the number of its bytes that are done: received, reduced, copied,
// or sent so that their memory may change again. Steps advance as far as the watermarks of the steps they
// depend on allow, so slices flow through dependent steps and nothing waits for whole chunks. A step is
// looked at only while it is at the head of all its queues.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.hpp"
#include "link/multicast.hpp"
#include "schedule/buffers.hpp"
#include "schedule/relay.hpp"

namespace collectives {

struct ScheduleSettings {
    std::size_t slice = 0;   // the most that one reduction does before others get their turn, bytes
    std::size_t copied = 0;  // the most that one copy does
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
    Channels* channels() override { return this; }

  private:
    using Step = Operation::Task;

    struct State {
        std::uint64_t done = 0;     // the watermark
        std::uint64_t written = 0;  // sends: bytes handed to the link
        std::uint32_t before = 0;   // queues in which others come first
        std::uint32_t there = 0;    // reductions: of the next slice's operands, the first so many have come
        bool started = false;
        bool complete = false;
    };

    // --- Channels
    std::span<const ChannelUse> uses() const override { return program().channels; }
    bool is_through_with(std::uint32_t channel) const override;
    void block(std::uint32_t step) override;
    void unblock(std::uint32_t step) override;

    // How the links are to carry the operation's messages.
    void set_contexts();
    // Take up a section of the operation, whose buffers begin here.
    void begin_section(std::uint64_t section, std::byte* in, std::byte* out);
    void begin_steps();
    bool is_in_sections() const { return request_->operation->sections() > 1; }
    bool is_last_section() const { return section_ + 1 == request_->operation->sections(); }

    bool advance(const Step& step, State& state);
    void start(const Step& step);
    bool is_complete(const Step& step, const State& state);
    // How far the steps it depends on let this one go, in whole elements.
    std::uint64_t limit(const Step& step) const;

    void send(const Step& step, State& state);
    void recv(const Step& step, State& state);
    void copy(const Step& step, State& state);
    void reduce(const Step& step, State& state);
    // Whether the next bytes of all operands are here.
    bool all_there(const Step& step, State& state);
    // n bytes of `operands_` reduced to `dst`.
    void apply(const Step& step, std::byte* dst, std::size_t n, Stores stores) const;
    // The step's results do not stay in the caches.
    bool is_streamed(const Step& step) const;
    // Large results that no later step reads are stored around the caches.
    Stores stores(const Step& step) const;

    // --- a message whose sender and length are known when it comes
    bool receives_message(const Step& step) const {
        return step.kind == StepKind::recv && request_->call.is_message();
    }
    // Whether it moved.
    bool recv_message(const Step& step, State& state);
    // Whether one has come; then what it is.
    bool meet_message(const Step& step);

    // --- one message to several peers
    void multicast(const Step& step, State& state);

    // --- results that go straight to where peers want them
    // Publish where messages are wanted that may come at once.
    void post_receptions();
    // Whether peers know where they want what the step reduces.
    bool relays(const Step& step) const;
    // `operands_` to n bytes of the result, also where peers want them.
    void reduce_and_relay(const Step& step, std::uint64_t begin, std::size_t n);
    // `operands_` to n bytes at all `places_` at once, around the caches; false if that cannot be.
    bool spread_streaming(const Step& step, std::size_t n) const;
    // Whether that peer gets what the step sends from the relay.
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

    const ScheduleSettings& settings_;
    Request* request_ = nullptr;
    std::uint64_t section_ = 0;             // under way
    const Operation* operation_ = nullptr;  // that of this section
    Context context_;                       // links refer to it between operations,
    Context multicast_context_;             // and to this one, of messages to several peers
    std::optional<bool> sockets_;           // whether it has links over them, once that was asked
    int sender_ = -1;                       // of the message that is received, once that is known,
    std::uint64_t message_length_ = 0;      // and how long it is
    Buffers buffers_;
    std::vector<State> states_;
    std::vector<std::uint32_t> active_;
    std::size_t unfinished_ = 0;

    // Kept between operations to save allocations.
    Relay relay_;
    std::unique_ptr<std::byte[]> relayed_;  // a slice on its way
    std::vector<Link*> posted_;             // links on which we have posted
    std::vector<const std::byte*> operands_;
    std::vector<std::byte*> places_;  // of a slice that is relayed: ours, then the peers'
    std::vector<Multicast::Target> targets_;
    std::vector<std::uint64_t> written_;  // by rank: bytes handed over, in the one multicast under way
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
