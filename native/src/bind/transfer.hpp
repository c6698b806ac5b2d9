// Arrays of a device that pass through host memory while operations run, as Python code sees them.
#pragma once

#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/function_ref.hpp"
#include "base/wait.hpp"
#include "bind/stream_ticket.hpp"
#include "cuda/array_transfer.hpp"
#include "schedule/access.hpp"

namespace collectives {

// Waits until `are_over`; returns false if they are not after `timeout` seconds. Without the GIL.
inline bool wait_for_copies(FunctionRef<bool()> are_over, double timeout) {
    const Deadline deadline(timeout);
    auto asked = Clock::now();
    while (!are_over()) {
        if (deadline.passed()) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        if (Clock::now() - asked < look_for_signals) continue;
        asked = Clock::now();
        if (interrupted()) throw Error(ErrorKind::interrupted, "waiting was interrupted");
    }
    return true;
}

// For one run of one call.
class PyTransfer {
  public:
    // `early`: whether results may leave before the call has ended. `keeps`: the staging memory.
    PyTransfer(std::span<const cuda::ArrayTransfer::Array> arrays, bool ordered, bool early,
               std::vector<nanobind::object> keeps)
        : keeps_(std::move(keeps)), transfer_(arrays, ordered), early_(early) {}

    // The call's operations are about to start. Waits for all copies if some operation cannot begin before.
    void begin(const Group& group, std::span<const Item> items, double timeout) {
        const nanobind::gil_scoped_release nogil;
        std::vector<Bytes> reads;
        bool early = early_;
        for (const Item& item : items) {
            const std::vector<Bytes> more = first_reads(*item.operation, item.in, item.out);
            reads.insert(reads.end(), more.begin(), more.end());
            early = early && group.may_begin_early(*item.operation);
        }
        // Operations of one call that are started one by one: the first may run already.
        if (begun_ && reads.empty()) return;
        begun_ = true;
        transfer_.begin(reads, early);
        if (early || wait_for_copies([&] { return !transfer_.is_coming(); }, timeout)) return;
        throw Error(ErrorKind::op_timeout,
                    "copies from this rank's device were not complete in time: its stream is held up");
    }
    // No operation uses it any more.
    void finish() {
        {
            const nanobind::gil_scoped_release nogil;
            transfer_.finish();
        }
        keeps_.clear();
    }
    Transfer& transfer() { return transfer_; }

  private:
    std::vector<nanobind::object> keeps_;  // longer than what uses it, or until `finish`
    cuda::ArrayTransfer transfer_;
    bool early_;
    bool begun_ = false;
};

}  // namespace collectives
