// The kinds of operations that engines run on device memory, and the bytes that a rank reads and writes in
// each.
//
// Invariant: pure functions, the same for all engines.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace collectives::cuda {

enum class Kind : std::uint8_t {
    allreduce,
    reduce,
    broadcast,
    allgather,
    reduce_scatter,
    gather,
    scatter,
    alltoall,
    send,
    recv,
};

inline constexpr std::array<std::string_view, 10> kind_names{
    "allreduce", "reduce",  "broadcast", "allgather", "reduce_scatter",
    "gather",    "scatter", "alltoall",  "send",      "recv"};

// The kind with that name; nothing if there is none.
constexpr std::optional<Kind> kind_of(std::string_view name) {
    for (std::size_t i = 0; i < kind_names.size(); ++i) {
        if (kind_names[i] == name) return static_cast<Kind>(i);
    }
    return std::nullopt;
}

constexpr bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

constexpr bool reduces(Kind kind) {
    return kind == Kind::allreduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

struct Sizes {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
};

// The bytes that a rank of `size` reads and writes. `part`: bytes of the part of each rank; of allreduce,
// reduce, broadcast and messages: of the whole array.
constexpr Sizes sizes_of(Kind kind, std::uint64_t part, int size, bool is_root) {
    const std::uint64_t all = part * static_cast<std::uint64_t>(size);
    switch (kind) {
        case Kind::allreduce:
            return {part, part};
        case Kind::reduce:
            return {part, is_root ? part : 0};
        case Kind::broadcast:
            return {is_root ? part : 0, part};
        case Kind::allgather:
            return {part, all};
        case Kind::reduce_scatter:
            return {all, part};
        case Kind::gather:
            return {part, is_root ? all : 0};
        case Kind::scatter:
            return {is_root ? all : 0, part};
        case Kind::alltoall:
            return {all, all};
        case Kind::send:
            return {part, 0};
        case Kind::recv:
            return {0, part};
    }
    return {};
}

}  // namespace collectives::cuda
