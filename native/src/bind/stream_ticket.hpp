// A stream, and the ticket of an operation that it orders, as Python code sees them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "bind/common.hpp"
#include "cuda/api.hpp"
#include "engine/stream_engine.hpp"

namespace collectives {

// A stream by its number in Python.
inline cuda::StreamHandle stream_of(std::uint64_t handle) {
    return reinterpret_cast<cuda::StreamHandle>(handle);
}

struct StreamTicket {
    std::shared_ptr<Group> group;
    std::shared_ptr<StreamWork> work;

    bool done() const { return group->done(*work); }
    void wait(std::optional<double> timeout) const {
        const nanobind::gil_scoped_release nogil;
        if (!group->wait(*work, timeout.value_or(std::numeric_limits<double>::infinity()), interrupted)) {
            throw Error(ErrorKind::op_timeout, "the operation is still running");
        }
    }
};

// Issues the task that `make` checks and returns; an error of `make` names this rank. `operations`: see
// Group::issue.
template <typename Make>
StreamTicket issue_task(const std::shared_ptr<Group>& group, const char* engine,
                        std::span<const Operation* const> operations, const Make& make, double timeout) {
    const nanobind::gil_scoped_release nogil;
    std::unique_ptr<StreamTask> task;
    try {
        task = make();
    } catch (const Error& error) {
        throw of_rank(group->rank(), error);
    }
    return {group, group->issue(engine, operations, std::move(task), timeout, interrupted)};
}

}  // namespace collectives
