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

// A port in use: its device stays open.
struct OpenPort {
    Port port;
    std::shared_ptr<Device> device;

    explicit OpenPort(Port chosen) : port(std::move(chosen)), device(Device::open(port.device)) {}
};

class VerbsTransport final : public Transport {
  public:
    explicit VerbsTransport(const Setup& setup)
        : rank_(setup.rank),
          usual_(std::make_shared<OpenPort>(choose_port(setup.rank))),
          settings_(settings(setup.silence, setup.rendezvous)) {
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

    void use_port(int peer, const std::string& port) override {
        std::shared_ptr<const OpenPort>& open = open_[port];  // many peers have the same
        if (!open) open = std::make_shared<OpenPort>(find_port(parse_wish(port)));
        const std::lock_guard lock(mutex_);
        by_peer_.insert_or_assign(peer, open);
    }

    Offer offer(int peer, int) override {
        const std::lock_guard lock(mutex_);
        std::unique_ptr<OwnEnd>& own = ends_[peer];
        if (!own) {
            const auto place = by_peer_.find(peer);
            const OpenPort& chosen = place == by_peer_.end() ? *usual_ : *place->second;
            own = std::make_unique<OwnEnd>(chosen.device, chosen.port, settings_);
        }
        return Offer::of(endpoint_version, own->describe());
    }

    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        Connection& connection = connections.at(0);
        const auto theirs = connection.offer.as<Endpoint>(endpoint_version);
        std::unique_ptr<OwnEnd> own;
        {
            const std::lock_guard lock(mutex_);
            own = std::move(ends_[peer.rank]);
        }
        check(theirs, own->queue->port(), record_bytes, peer.name());
        return std::make_unique<VerbsLink>(peer, rank_, std::move(own), theirs, std::move(connection.socket),
                                           giving_up_, pieces_);
    }

  private:
    int rank_;
    std::shared_ptr<const OpenPort> usual_;                        // for peers of which nothing is known
    std::map<std::string, std::shared_ptr<const OpenPort>> open_;  // by the text that chooses it
    Settings settings_;
    Pieces pieces_;
    GivingUp giving_up_;
    std::mutex mutex_;  // offers are made on another thread
    std::map<int, std::shared_ptr<const OpenPort>> by_peer_;
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
    return why_not_locked(registered_bytes() * static_cast<std::size_t>(std::clamp(ranks - 1, 1, peers)));
}

const RegisteredTransport registered(
    "verbs", {[](const Setup& setup) { return std::make_unique<VerbsTransport>(setup); }, no_room, survey});

}  // namespace

}  // namespace collectives::verbs
