// The transport "verbs": RDMA connections between any two ranks whose devices reach each other.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "base/round.hpp"
#include "link/registry.hpp"
#include "verbs/endpoint.hpp"
#include "verbs/link.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

namespace {

class VerbsTransport final : public Transport {
  public:
    explicit VerbsTransport(const Setup& setup)
        : rank_(setup.rank),
          port_(choose_port(setup.rank)),
          device_(Device::open(port_.device)),
          settings_(settings(setup.silence)) {
        if (setup.segment == 0) return;
        const std::size_t segment = round_up(setup.segment, unit_bytes);
        pieces_ = {std::min(pieces_.of_record, segment), std::min(pieces_.straight, segment)};
    }

    const Capabilities& capabilities() const override {
        static constexpr Capabilities answer{.crosses_machines = true,
                                             .writes_remote_memory = true,
                                             .takes_sockets = true,
                                             .registers_memory = true};
        return answer;
    }
    Meeting meeting() const override { return Meeting::network; }
    int connections() const override { return 1; }

    Offer offer(int peer, int) override {
        const std::lock_guard lock(mutex_);
        std::unique_ptr<OwnEnd>& own = ends_[peer];
        if (!own) own = std::make_unique<OwnEnd>(device_, port_, settings_);
        return Offer::of(endpoint_version, own->describe());
    }

    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        Connection& connection = connections.at(0);
        const auto theirs = connection.offer.as<Endpoint>(endpoint_version);
        check(theirs, port_, record_bytes, peer.name());
        std::unique_ptr<OwnEnd> own;
        {
            const std::lock_guard lock(mutex_);
            own = std::move(ends_[peer.rank]);
        }
        return std::make_unique<VerbsLink>(peer, rank_, std::move(own), theirs, std::move(connection.socket),
                                           pieces_);
    }

  private:
    int rank_;
    Port port_;
    std::shared_ptr<Device> device_;
    Settings settings_;
    Pieces pieces_;
    std::mutex mutex_;                             // offers are made on another thread
    std::map<int, std::unique_ptr<OwnEnd>> ends_;  // by peer, of links that are not made yet
};

// A ring and a buffer for each peer; a rank has links to a few peers at least.
std::optional<std::string> no_room(int ranks, std::size_t /*segment*/) {
    constexpr int peers = 4;
    try {
        settings({});
    } catch (const Error& error) {
        return error.what();
    }
    return why_not_locked(2 * ring_bytes * static_cast<std::size_t>(std::clamp(ranks - 1, 1, peers)));
}

const RegisteredTransport registered(
    "verbs", {[](const Setup& setup) { return std::make_unique<VerbsTransport>(setup); }, no_room, survey});

}  // namespace

}  // namespace collectives::verbs
