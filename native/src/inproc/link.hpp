// Links between threads of one process, which read each other's memory in place.
//
// Short messages are copied into the channel (eager protocol). A longer message is read once, in the sender's
// memory, by the copy or reduction that needs it (rendezvous protocol).
#pragma once

#include <memory>

#include "inproc/endpoint.hpp"
#include "link/link.hpp"

namespace collectives {

class InprocLink final : public Link {
  public:
    InprocLink(Peer peer, int rank, std::shared_ptr<InprocEndpoint> own,
               std::shared_ptr<InprocEndpoint> theirs);
    ~InprocLink() override;

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override;
    bool finished() override { return started_ && written_ == length_ && released() == length_; }

    std::optional<Announcement> announced(const Context& context, std::size_t eager) override;
    void expect(const Context& context, std::uint64_t length) override;
    std::size_t read(std::byte* data, std::size_t n, Stores stores) override;
    std::span<const std::byte> lend(std::size_t unit) override;
    void consume(std::size_t n) override;
    bool ready(std::size_t unit) override;
    bool received() override { return open() && read_ == expected_length_; }

    const char* lost() override { return theirs_->is_closed() ? "it closed the communicator" : nullptr; }
    void shut_down(std::optional<int> lost) override;
    const char* scheme() const override { return "inproc"; }
    void abandon() override;

    const CallComparison& calls() const { return calls_; }
    bool has_begun(std::uint64_t sequence) const override { return calls_.has_begun(sequence); }
    void compare(const Call& mine) const override { calls_.compare(mine); }
    void throw_disagreement(const Call& /*during*/) const override { calls_.throw_disagreement(); }

  private:
    std::optional<int> blamed() const override;
    void report_disagreement(const Call& mine, const Call& theirs) const override {
        calls_.report(mine, theirs);
    }
    bool is_eager() const { return length_ <= inproc_eager_up_to; }
    // Whether the next message has begun to arrive; throws if it is not the expected one.
    bool open();
    // The available bytes of the message, from the next byte on. Throws if their memory may be freed.
    std::span<const std::byte> next();
    void finish();

    int rank_;
    std::shared_ptr<InprocEndpoint> own_;
    std::shared_ptr<InprocEndpoint> theirs_;
    InprocChannel& out_;
    InprocChannel& in_;
    CallComparison calls_;

    // sending
    const Context* sending_ = nullptr;
    std::uint64_t number_ = 0;  // messages begun so far
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    bool started_ = false;  // the message has a slot

    // receiving
    const Context* expected_ = nullptr;
    std::uint64_t finished_ = 0;  // messages received so far
    std::uint64_t expected_length_ = 0;
    std::uint64_t read_ = 0;
    InprocSlot* slot_ = nullptr;  // slot of the message, after it has begun to arrive
};

}  // namespace collectives
