// The link of a rank to itself, which keeps copies of messages until they are received.
//
// Invariant: sending never waits. Messages are received in the order in which they were sent.
#pragma once

#include <list>
#include <vector>

#include "link/link.hpp"

namespace collectives {

class SelfLink final : public Link {
  public:
    explicit SelfLink(Peer self) : Link(std::move(self)) {}

    void begin(const Context& context, std::uint64_t length) override;
    std::size_t write(const std::byte* data, std::size_t n) override;
    std::uint64_t released() override { return written_; }
    bool finished() override { return sent_ && written_ == length_; }

    std::optional<Announcement> announced(const Context& context, std::size_t eager) override;
    void expect(const Context& context, std::uint64_t length) override;
    std::size_t read(std::byte* data, std::size_t n, Stores stores) override;
    std::span<const std::byte> lend(std::size_t unit) override;
    void consume(std::size_t n) override;
    bool ready(std::size_t unit) override;
    bool received() override { return taken_ == expected_length_; }

    const char* lost() override { return nullptr; }
    void shut_down(std::optional<int>) override {}
    const char* scheme() const override { return "self"; }

  private:
    struct Message {
        Call call;
        std::vector<std::byte> bytes;
        std::uint64_t length = 0;
    };

    std::optional<int> blamed() const override { return std::nullopt; }
    // The available bytes of the message being received, from the next byte on.
    std::span<const std::byte> next() const;

    std::list<Message> messages_;  // the last one may be incomplete

    // sending
    std::uint64_t length_ = 0;
    std::uint64_t written_ = 0;
    bool sent_ = false;

    // receiving
    Message open_;
    std::uint64_t expected_length_ = 0;
    std::uint64_t taken_ = 0;
};

}  // namespace collectives
