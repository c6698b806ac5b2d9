// The transport "inproc": threads of one process.
#include <utility>

#include "inproc/link.hpp"
#include "link/registry.hpp"

namespace collectives {

namespace {

class InprocTransport final : public Transport {
  public:
    explicit InprocTransport(const Setup& setup)
        : rank_(setup.rank), endpoint_(std::make_shared<InprocEndpoint>(setup.size, setup.waker)) {}

    const Capabilities& capabilities() const override {
        static constexpr Capabilities answer{.reads_remote_memory = true, .inline_up_to = inproc_eager_up_to};
        return answer;
    }
    Meeting meeting() const override { return Meeting::process; }
    int connections() const override { return 1; }

    Offer offer(int, int) override {
        Offer offer;
        offer.object = endpoint_;
        return offer;
    }

    std::unique_ptr<Link> connect(const Peer& peer, std::vector<Connection> connections) override {
        auto theirs = std::static_pointer_cast<InprocEndpoint>(connections.at(0).offer.object);
        return std::make_unique<InprocLink>(peer, rank_, endpoint_, std::move(theirs));
    }

    std::shared_ptr<Colocation> colocation() override { return endpoint_; }

  private:
    int rank_;
    std::shared_ptr<InprocEndpoint> endpoint_;
};

const RegisteredTransport registered(
    "inproc", {[](const Setup& setup) { return std::make_unique<InprocTransport>(setup); }, {}});

}  // namespace

}  // namespace collectives
