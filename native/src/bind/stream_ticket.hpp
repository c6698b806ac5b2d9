// A stream, and the ticket of an operation that it orders, as Python code sees them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "bind/common.hpp"
#include "cuda/api.hpp"

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

}  // namespace collectives
