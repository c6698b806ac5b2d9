// The use of a communicator of NCCL by one communicator of this library. Several of equal ranks may share one
// of NCCL, which takes hundreds of megabytes of the device's memory.
//
// Invariant: NCCL's communicator is closed with the last lease. An abort ends it for all, and each of them
// learns of that.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "nccl/communicator.hpp"

namespace collectives::nccl {

class Lease final : public StreamEngine {
  public:
    explicit Lease(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {
        communicator_->join();
    }
    ~Lease() override { close(); }

    const char* name() const override { return communicator_->name(); }
    std::optional<std::string> failure() override {
        if (!ended_.load() && communicator_->is_over()) {
            return "NCCL's communicator was aborted by another communicator that shares it "
                   "(COLLECTIVES_NCCL_SHARE)";
        }
        return communicator_->failure();
    }
    void abort() noexcept override {
        ended_.store(true);
        communicator_->abort();
    }
    void close() noexcept override {
        ended_.store(true);
        if (!left_.exchange(true)) communicator_->leave_it();
    }

  private:
    const std::shared_ptr<Communicator> communicator_;
    std::atomic<bool> ended_{false};
    std::atomic<bool> left_{false};
};

}  // namespace collectives::nccl
