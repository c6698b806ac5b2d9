#include "link/frame.hpp"

#include "base/types.hpp"

namespace collectives {

namespace {

std::uint64_t mix(std::uint64_t h) {
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93;
    h ^= h >> 32;
    return h;
}

}  // namespace

bool Call::is_message() const { return collective == static_cast<std::uint8_t>(Collective::send); }

std::uint32_t Call::fingerprint(std::uint32_t history) const {
    const std::uint64_t kinds = std::uint64_t{collective} << 16 | std::uint64_t{op} << 8 | dtype;
    std::uint64_t h = mix((sequence + 0x9e3779b97f4a7c15) ^ std::uint64_t{history} << 32);
    h = mix(h ^ count);
    h = mix(h ^ (std::uint64_t{algorithm} << 32 | root));
    h = mix(h ^ (kinds << 32 | epoch));
    return static_cast<std::uint32_t>(h);
}

const char* collective_name(Collective collective) {
    switch (collective) {
        case Collective::allreduce:
            return "allreduce";
        case Collective::reduce:
            return "reduce";
        case Collective::broadcast:
            return "broadcast";
        case Collective::allgather:
            return "allgather";
        case Collective::reduce_scatter:
            return "reduce_scatter";
        case Collective::gather:
            return "gather";
        case Collective::scatter:
            return "scatter";
        case Collective::alltoall:
            return "alltoall";
        case Collective::barrier:
            return "barrier";
        case Collective::send:
            return "send/recv";
        case Collective::scan:
            return "scan";
        case Collective::exscan:
            return "exscan";
    }
    return "an unknown operation";
}

std::string Call::describe() const {
    const auto what = static_cast<Collective>(collective);
    std::string text =
        std::string("operation ") + std::to_string(sequence) + ": " + collective_name(what) + "(";
    if (what != Collective::barrier) {
        const bool reduces = what == Collective::allreduce || what == Collective::reduce ||
                             what == Collective::reduce_scatter || what == Collective::scan ||
                             what == Collective::exscan;
        const bool rooted = what == Collective::reduce || what == Collective::broadcast ||
                            what == Collective::gather || what == Collective::scatter;
        if (reduces && op == caller_op) text += "a function, ";
        if (reduces && is_op(op)) text += std::string(name(static_cast<Op>(op))) + ", ";
        text += is_dtype(dtype) ? name(static_cast<DType>(dtype)) : "an unknown dtype";
        if (count > 0) text += ", " + std::to_string(count) + (count == 1 ? " element" : " elements");
        if (rooted) text += ", root " + std::to_string(root);
    }
    return text + ")";
}

}  // namespace collectives
