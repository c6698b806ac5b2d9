// The ticket of an operation that a stream orders, as Python code sees it.
#pragma once

#include <limits>
#include <memory>
#include <optional>

#include "bind/common.hpp"

namespace collectives {

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
