// Arrays of a device that pass through pinned host memory while an operation runs on this memory.
//
// Invariant: whose arrays these are, and how they are copied, concerns this rank alone: the operation is that
// of ranks whose arrays are in host memory. Inputs are copied in slices, in the order in which the operation
// reads them; results are copied as soon as they are final. Each array has memory and streams of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/transfer.hpp"
#include "cuda/signal.hpp"
#include "cuda/staging.hpp"

namespace collectives::cuda {

class ArrayTransfer final : public Transfer {
  public:
    // `memory`: pinned, of `staging`, from its beginning on. The caller keeps all of it until no operation
    // uses this object any more.
    struct Array {
        Staging* staging = nullptr;
        const std::byte* memory = nullptr;
        Pointer on_device = 0;
        std::uint64_t bytes = 0;
        StreamHandle stream = nullptr;  // in which the caller uses the array
        bool read = false;              // the operation may read it
        bool written = false;           // the operation may write it
    };
    // `ordered`: arrays overlap on the device, so results are copied after all inputs.
    ArrayTransfer(std::span<const Array> arrays, bool ordered);

    // Begin to copy `reads`, what the operation reads, in this order; each byte once. `early`: it may begin,
    // and its results leave, meanwhile. Otherwise all is copied: inputs now, and results by `finish`. Throws
    // Error.
    void begin(std::span<const std::span<const std::byte>> reads, bool early);
    // The operation is over. What callers put into their streams from now on begins after all copies.
    void finish();

    std::uint64_t there(const std::byte* at, std::uint64_t n) override;
    void leave(const std::byte* at, std::uint64_t n) override;
    bool is_coming() override;

  private:
    // A part of an array, on its way to the host.
    struct Slice {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        Signal arrival;
    };
    struct Passing {
        Array array;
        std::vector<Slice> slices = {};  // in the order of their copies
        std::size_t arrived = 0;         // the first slices

        bool is_coming();
    };
    struct Leaving {
        Passing* of = nullptr;
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
    };

    static void fetch(Passing& passing, std::uint64_t begin, std::uint64_t end);
    static void put(const Leaving& leaving);
    void put_waiting();
    Passing* find(const std::byte* at);

    std::vector<Passing> arrays_;
    bool ordered_;
    bool early_ = false;
    std::vector<Leaving> waiting_;  // for inputs
};

}  // namespace collectives::cuda
