// The transport "tcp": connections between any two ranks, which carry the data and are closed with the link.
#include <utility>

#include "link/registry.hpp"
#include "tcp/link.hpp"

namespace collectives {

namespace {

class TcpTransport final : public Transport {
  public:
    explicit TcpTransport(const Setup& setup)
        : sockets_(setup.sockets), slice_(setup.slice), silence_(setup.silence) {}

    const Capabilities& capabilities() const override {
        static constexpr Capabilities answer{.crosses_machines = true, .takes_sockets = true};
        return answer;
    }
    Meeting meeting() const override { return Meeting::network; }
    // The connections for data, and a last one for the farewell.
    int connections() const override { return sockets_ + 1; }
    Offer offer(int, int) override { return {}; }

    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        std::vector<UniqueFd> sockets;
        for (Connection& connection : connections) sockets.push_back(std::move(connection.socket));
        UniqueFd farewell = std::move(sockets.back());
        sockets.pop_back();
        return std::make_unique<TcpLink>(peer, std::move(sockets), std::move(farewell), slice_, silence_);
    }

  private:
    int sockets_;
    std::size_t slice_;
    std::chrono::nanoseconds silence_;
};

const RegisteredTransport registered(
    "tcp", {[](const Setup& setup) { return std::make_unique<TcpTransport>(setup); }, {}});

}  // namespace

}  // namespace collectives
