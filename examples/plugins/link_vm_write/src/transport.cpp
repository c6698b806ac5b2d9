// The transport "vm-write": processes of one machine, which write into each other's memory.
#include <unistd.h>

#include <collectives/base/error.hpp>
#include <collectives/base/export.hpp>
#include <collectives/link/registry.hpp>
#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "link.hpp"

COLLECTIVES_PLUGIN

namespace vm_write {

namespace {

using collectives::Error;
using collectives::ErrorKind;

constexpr std::uint8_t offer_version = 1;

struct BlockOffer {
    std::uint64_t address = 0;
    std::array<std::uint64_t, 2> cookie{};
};

// Of this process: peers find out by it whether they reach it.
const std::array<std::uint64_t, 2>& beacon() {
    static const std::array<std::uint64_t, 2> words = [] {
        std::random_device random;
        const auto word = [&] { return std::uint64_t{random()} << 32 | random(); };
        return std::array{word(), word()};
    }();
    return words;
}

class Transport final : public collectives::Transport {
  public:
    explicit Transport(const collectives::Setup& setup) : shared_(std::make_shared<Shared>()) {
        shared_->rank = setup.rank;
    }

    const collectives::Capabilities& capabilities() const override {
        static constexpr collectives::Capabilities answer{.writes_remote_memory = true,
                                                          .takes_sockets = true};
        return answer;
    }
    collectives::Meeting meeting() const override { return collectives::Meeting::local; }
    int connections() const override { return 1; }

    collectives::Offer offer(int peer, int) override {
        const std::lock_guard lock(mutex_);
        std::unique_ptr<Block>& block = blocks_[peer];
        if (!block) {
            block = std::make_unique<Block>();
            block->cookie = beacon();
        }
        return collectives::Offer::of(
            offer_version, BlockOffer{reinterpret_cast<std::uintptr_t>(block.get()), block->cookie});
    }

    std::unique_ptr<collectives::Link> connect(const collectives::Peer& peer,
                                               std::vector<collectives::Connection> connections) override {
        collectives::Connection& connection = connections.at(0);
        const auto theirs = connection.offer.as<BlockOffer>(offer_version);
        // Before anything is written there, it must be known that it is the peer who is there.
        const int problem = compare(connection.pid, theirs.address, theirs.cookie);
        if (problem != 0 || theirs.address % alignof(Block) != 0) {
            throw Error(
                ErrorKind::transport_unavailable,
                "the memory of " + peer.name() + " cannot be reached: " + collectives::errno_text(problem));
        }
        const std::lock_guard lock(mutex_);
        std::unique_ptr<Block> own = std::move(blocks_[peer.rank]);
        return std::make_unique<Link>(peer, shared_, std::move(own), theirs.address, connection.pid,
                                      std::move(connection.socket));
    }

  private:
    std::shared_ptr<Shared> shared_;
    std::mutex mutex_;                              // offers are made on another thread
    std::map<int, std::unique_ptr<Block>> blocks_;  // by peer, of links that are not made yet
};

const collectives::RegisteredTransport registered(
    "vm-write", {[](const collectives::Setup& setup) { return std::make_unique<Transport>(setup); }, {}});

}  // namespace

}  // namespace vm_write

// --- for the Python half
extern "C" {

// Bytes of messages that this process has written to others.
COLLECTIVES_API std::uint64_t vm_write_payload() { return vm_write::payload_written.load(); }

// Where this process's beacon is, and what it is.
COLLECTIVES_API void vm_write_beacon(std::uint64_t* address, std::uint64_t* first, std::uint64_t* second) {
    const auto& words = vm_write::beacon();
    *address = reinterpret_cast<std::uintptr_t>(words.data());
    *first = words[0];
    *second = words[1];
}

// Whether that process has that beacon there: 0, or an errno, EXDEV where something else is there.
COLLECTIVES_API int vm_write_probe(int pid, std::uint64_t address, std::uint64_t first,
                                   std::uint64_t second) {
    return vm_write::compare(pid, address, std::array{first, second});
}
}
