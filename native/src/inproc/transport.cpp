// The transport "inproc": threads of one process, which read each other's memory where it lies.
#include <utility>

#include "link/registry.hpp"
#include "shm/link.hpp"
#include "shm/memory.hpp"

namespace collectives {

namespace {

class InprocTransport final : public Transport {
  public:
    explicit InprocTransport(const Setup& setup) : rank_(setup.rank), arena_(memory_of(setup, false).arena) {}

    const Capabilities& capabilities() const override {
        static constexpr Capabilities answer{.reads_remote_memory = true,
                                             .writes_remote_memory = true,
                                             .shares_memory = true,
                                             .inline_up_to = Line::inline_bytes};
        return answer;
    }
    Meeting meeting() const override { return Meeting::process; }
    int connections() const override { return 1; }

    Offer offer(int, int) override {
        Offer offer;
        offer.object = arena_;
        return offer;
    }

    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        auto theirs = std::static_pointer_cast<Arena>(connections.at(0).offer.object);
        return std::make_unique<ShmLink>(peer, rank_, arena_, std::move(theirs), true);
    }

  private:
    int rank_;
    std::shared_ptr<Arena> arena_;
};

const RegisteredTransport registered(
    "inproc", {[](const Setup& setup) { return std::make_unique<InprocTransport>(setup); }, {}});

}  // namespace

}  // namespace collectives
