// The arena, one rank's shared memory: a control area into which its peers write acknowledgements, staging
// memory that they read, and a heap for arrays that they may read directly.
//
// Invariant: the memory belongs to a memfd, so it has no name and ends with the last process that maps it.
// The file is as large as the machine's memory, but only touched pages exist. Only this file describes the
// layout.
//
// Layout of a rank's arena in a group of `size` ranks:
//
//     Header                     one page: identity, doorbell, current operation
//     Outlet[size]               per receiving peer: lines, acknowledgements, staging, places
//     cast slots                 staging that several peers read at once
//     PoolBoard                  who has added to the pool's accumulators, and who has copied the sums out
//     accumulators               sums to which all ranks add, see Pool; used in the arenas of two ranks
//     copies                     copies of these sums for ranks of one core; used in the arenas of two ranks
//     FlatBoard                  what ranks publish in short operations, see MessageBoard
//     places                     published data that does not fit into a line, and sums that two cores
//     exchange heap                       arrays from Communicator.empty(); pages that are withdrawn from
//     peers, see
//                                `withdraw`, are no longer in the file
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/cpu.hpp"
#include "base/page.hpp"
#include "base/round.hpp"
#include "base/unique_fd.hpp"
#include "base/wait.hpp"
#include "link/presence.hpp"
#include "link/published_calls.hpp"
#include "shm/joint.hpp"
#include "shm/remote.hpp"
#include "shm/staging.hpp"

namespace collectives {

// A line, with which a sender announces one slice of a message.
//
// A message of up to `inline_bytes` is sent in the line itself. `tag` has the number of the line on its link
// in the upper half, and a fingerprint of the operation in the lower half; it is stored last.
struct alignas(cache_line) Line {
    static constexpr std::size_t inline_bytes = 56;

    std::atomic<std::uint64_t> tag;
    union {
        std::array<std::byte, inline_bytes> data;
        struct {
            std::uint64_t offset;  // within the sender's arena, or an address in its process
            std::uint64_t length;
            Staged staged;
            std::uint32_t place;  // 1 + number of the place that holds the slice; 0: none
        } slice;
    };
};
static_assert(sizeof(Line) == cache_line);

inline constexpr std::size_t lines_per_link = 64;
inline constexpr std::size_t slots_per_link = 4;
inline constexpr std::size_t places_per_link = 4;  // in each of the two arenas, see Places
inline constexpr std::size_t cast_slots = 3;
inline constexpr std::size_t accumulators = 4;
// For ranks with cores of their own the same memory has shorter accumulators: their bytes and largest number.
inline constexpr std::size_t short_accumulator = 32 << 10;
inline constexpr std::size_t most_accumulators = 16;

// The destination that a receiver has posted for a message from a peer, see Relay.
struct alignas(cache_line) Post {
    std::atomic<std::uint64_t> tag;  // identifies the message; 0: none. Stored last, and cleared first
    std::uint64_t offset;            // within the receiver's arena
    std::uint64_t length;
    std::uint64_t replaces;  // number of the message to the peer that is sent from there, see Program
};

// One rank's side of its link to a peer.
struct Outlet {
    std::array<Line, lines_per_link> lines;
    alignas(cache_line) std::atomic<std::uint64_t> acknowledged;  // lines the peer has finished with
    // The last line whose memory the peer could not read, and the bytes of the message that it had then.
    std::atomic<std::uint64_t> refused;
    std::atomic<std::uint64_t> refused_from;
    // The copy of a line that is read from this side's process; opened by the peer, its receiver.
    alignas(cache_line) JointCopy::Shared joint;
    Post post;
    std::atomic<Reads> reads_memory;  // how this side reads the peer's process
    std::atomic<std::uint32_t>
        abandoned;  // this side has failed; memory that it has announced may be used for something else
    alignas(page_size) std::byte staging[];  // slots_per_link * staging_bytes, and as much for each place
};

struct Header {
    std::uint64_t magic;
    std::array<std::uint64_t, 2> cookie;  // random: proves that a mapping is that of the intended arena
    std::uint64_t address;                // of this header in its owner's process
    Reads reads;                          // how the owner reads memory of other processes, if it may
    std::uint32_t short_accumulators;     // the number of short accumulators that fit into the owner's caches
    alignas(cache_line) std::atomic<std::uint32_t> doorbell;
    std::atomic<std::uint32_t> sleeping;  // Sleep
    std::atomic<std::uint32_t> closed;    // the owner has closed its communicator
    std::atomic<std::uint32_t> lost;      // 1 + the lost rank if that is the reason, else 0; stored before
    Presence presence;
    PublishedCalls calls;  // the owner's
};

static_assert(sizeof(Header) <= page_size);

// See Pool.
struct PoolBoard {
    struct alignas(cache_line) Word {
        std::atomic<std::uint64_t> last;
    };
    std::array<Word, most_accumulators> words;
    std::atomic<std::uint64_t> got[];  // by rank: the last piece that the rank has copied out
};

// See MessageBoard. Lines are two cache lines apart, since cores fetch cache lines in pairs.
struct alignas(2 * cache_line) FlatLine {
    static constexpr std::size_t inline_bytes = 112;

    std::atomic<std::uint64_t> tag;    // number and fingerprint of the operation; stored last
    std::atomic<std::uint64_t> taken;  // in the line of a sum: the rank that has added it up
    std::array<std::byte, inline_bytes> data;
};
static_assert(sizeof(FlatLine) == 2 * cache_line);

inline constexpr std::size_t flat_slots = 8;
inline constexpr std::uint64_t on_board = 4 << 10;  // bytes beside each line
inline constexpr std::size_t large_slots = 2;       // operations with longer data that may overlap

// The lines of each operation on a board, for each rank: one for its data. For each core that ranks share, of
// which there are at most as many as ranks: one for the sum of its ranks' data, and one whose tag counts the
// ranks that have arrived.
inline constexpr std::size_t flat_lines_per_rank = 3;

struct FlatBoard {
    std::atomic<std::uint32_t> sleepers;  // number of ranks that sleep until something is published
    std::array<FlatLine, 2> given;        // in turn: the sum that one of two cores gives to the other
    FlatLine lines[];                     // [flat_slots][flat_lines_per_rank][size]
};

enum class Sleep : std::uint32_t { awake = 0, on_doorbell = 1, on_eventfd = 2 };

struct Geometry {
    std::uint32_t size = 0;         // ranks in the group
    std::size_t slot_bytes = 0;     // of a piece that ranks share, or that they stage if they share cores
    std::size_t staging_bytes = 0;  // of a cast slot, a place or an accumulator; the longest piece
    std::size_t heap_bytes = 0;

    std::size_t link_staging() const { return slots_per_link * staging_bytes; }
    std::size_t places_offset() const { return round_up(link_staging(), page_size); }
    std::size_t outlet_stride() const;
    std::size_t cast_offset() const { return page_size + size * outlet_stride(); }
    std::size_t pool_offset() const;
    std::size_t accumulators_offset() const;
    std::size_t flat_offset() const;
    std::size_t flat_data_offset() const;
    std::size_t flat_large_offset() const;
    // The number of places that are used in turn, an even number. It is chosen so that all ranks together
    // write more than fits into their caches before they use a place again.
    std::size_t large_places() const;
    std::size_t flat_given_offset() const;
    // The largest number of bytes that one core gives to the other.
    std::size_t given_bytes() const;
    std::size_t heap_offset() const;
    std::size_t total() const { return heap_offset() + heap_bytes; }
};

class Arena {
  public:
    // A new arena in a memfd, to be shared by passing `fd()`.
    static std::shared_ptr<Arena> create_shared(const Geometry& geometry);
    // Maps a peer's arena; `wake` is the peer's eventfd. Throws Error(transport_unavailable) if the file is
    // not the intended one.
    static std::shared_ptr<Arena> map(int fd, const Geometry& geometry,
                                      const std::array<std::uint64_t, 2>& cookie, UniqueFd wake);

    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    Header& header() const { return *reinterpret_cast<Header*>(base_); }
    Outlet& outlet(int peer);
    // Room for `link_staging` bytes.
    std::byte* staging(int peer) { return outlet(peer).staging; }
    // Room for `staging_bytes`.
    std::byte* place(int peer, std::size_t index) {
        return staging(peer) + geometry_.places_offset() + index * geometry_.staging_bytes;
    }
    std::byte* cast_slot(std::size_t index);
    PoolBoard& pool_board() { return *reinterpret_cast<PoolBoard*>(base_ + geometry_.pool_offset()); }
    // Room for `accumulators` times `staging_bytes` each.
    std::byte* pool_memory() { return base_ + geometry_.accumulators_offset(); }
    std::byte* pool_copies() { return pool_memory() + accumulators * geometry_.staging_bytes; }
    FlatBoard& flat_board() { return *reinterpret_cast<FlatBoard*>(base_ + geometry_.flat_offset()); }
    // Room for `on_board` bytes beside each line.
    std::byte* flat_data() { return base_ + geometry_.flat_data_offset(); }
    // Room for `given_bytes` for each of two cores.
    std::byte* flat_given() { return base_ + geometry_.flat_given_offset(); }
    // Room for `slot_bytes` for each rank, [large_places][size].
    std::byte* flat_large() { return base_ + geometry_.flat_large_offset(); }
    // `offset` must be within the arena.
    std::byte* at(std::uint64_t offset) { return base_ + offset; }
    int fd() const { return fd_.get(); }
    // The owner's eventfd, to which peers write if the owner sleeps on sockets, too.
    int wake_fd() const { return wake_.get(); }
    const Geometry& geometry() const { return geometry_; }

    // The owner's core, and when it was busy.
    Presence& presence() { return header().presence; }
    const Presence& presence() const { return header().presence; }
    // The calls that the owner has begun.
    PublishedCalls& calls() const { return header().calls; }

    // Whether [data, data + n) is in the heap. `offset_of` returns its offset in the arena.
    bool in_heap(const std::byte* data, std::size_t n) const;
    std::uint64_t offset_of(const std::byte* data) const {
        return reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(base_);
    }

    // Memory from the heap, 64-byte aligned; memory that was not in use before is zero. nullptr if there is
    // none left. Thread-safe.
    std::byte* allocate(std::size_t n);
    // Bytes of the heap in use, in whole cache lines or pages.
    std::size_t heap_in_use();
    // Return memory to the heap, and its whole pages to the kernel.
    void release(std::byte* data, std::size_t n);
    // Make the pages of the n bytes of the heap at `data` private to this process, so that peers that still
    // write there have no effect. Contents and address stay. False if the kernel refuses. Thread-safe.
    bool withdraw(std::byte* data, std::size_t n);

  private:
    Arena(std::byte* base, const Geometry& geometry, UniqueFd fd, UniqueFd wake);
    void punch(std::size_t offset, std::size_t n);
    bool is_withdrawn(std::size_t offset, std::size_t n) const;

    std::byte* base_;
    Geometry geometry_;
    UniqueFd fd_;
    UniqueFd wake_;
    std::mutex mutex_;
    std::map<std::size_t, std::size_t> free_;       // offset -> bytes, neighbours merged
    std::map<std::size_t, std::size_t> withdrawn_;  // begin -> end, whole pages; no two overlap
};

}  // namespace collectives
