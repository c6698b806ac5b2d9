// The records of a communicator's last operations: the call, when it began and ended, and how long it waited.
//
// Invariant: one thread at a time writes, the one that runs operations, and never waits. Any thread may read,
// also after the communicator is broken or closed; what it gets of one operation belongs together. It knows
// no engine: whoever runs an operation fills its record by number. Records that have been overwritten are
// left alone.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ticks.hpp"
#include "link/frame.hpp"

namespace collectives {

// queued: the links are not open, or the progress thread has not started it; failed: it has raised an error.
enum class RecordState : std::uint8_t { queued, started, done, failed };

// A snapshot of a record. Times are in ticks; 0 if the moment has not come.
struct Record {
    std::uint64_t number = 0;  // of the operations that this rank has begun, from 1 on; 0: not yet
    Call call;
    int peer = -1;  // of a message: its receiver or sender; -1 if any rank may send it
    bool sends = false;
    RecordState state = RecordState::queued;
    std::string engine;
    std::uint64_t queued = 0;
    std::uint64_t begun = 0;
    std::uint64_t first = 0;  // something moved for the first time
    std::uint64_t ended = 0;
    std::uint64_t waited = 0;  // ticks in which nothing could move
    std::uint64_t sent = 0;    // bytes, of payload; known once it is done
    std::uint64_t received = 0;
    std::string error;
};

// A collective that this rank has begun.
struct BegunCall {
    Call call;
    std::uint32_t fingerprint = 0;  // of this call and all before it; 0: not known yet
};

class Recorder {
  public:
    static constexpr std::size_t kept = 1000;

    Recorder() = default;
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;
    ~Recorder();

    // --- for the one who runs operations; the number that `add` gives is the record's
    // Of a message: to or from whom, -1 where any rank may send it.
    struct Way {
        int peer = -1;
        bool sends = false;
    };
    // It waits, or is under way already, with an engine.
    std::uint64_t add(const Call& call, const Way& way, std::uint64_t queued, const char* engine = nullptr,
                      std::uint64_t begun = 0, std::uint32_t fingerprint = 0) {
        const std::uint64_t number = added() + 1;
        Slot& slot = slot_of(number);
        slot.version.store(number << 1 | 1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);
        set_call(slot, call);
        set(slot.queued, queued);
        set(slot.begun, begun);
        set(slot.first, 0);
        set(slot.ended, 0);
        set(slot.waited, 0);
        set(slot.waits_since, 0);
        set(slot.sent, 0);
        set(slot.received, 0);
        set(slot.fingerprint, fingerprint);
        slot.engine.store(engine, std::memory_order_relaxed);
        set(slot.kind, pack(engine == nullptr ? RecordState::queued : RecordState::started, way));
        slot.version.store(number << 1, std::memory_order_release);
        added_.store(number, std::memory_order_release);
        return number;
    }
    // It is under way; `call`: with its final sequence number.
    void start(std::uint64_t number, const Call& call, const char* engine, std::uint64_t now,
               std::uint32_t fingerprint = 0) {
        Slot* const slot = find(number);
        if (slot == nullptr) return;
        set_call(*slot, call);
        set(slot->fingerprint, fingerprint);
        set(slot->begun, now);
        slot->engine.store(engine, std::memory_order_relaxed);
        set_state(*slot, RecordState::started);
    }
    // It waits for links after all, and goes on once they are there.
    void hold(std::uint64_t number) {
        Slot* const slot = find(number);
        if (slot == nullptr) return;
        set(slot->begun, 0);
        set_state(*slot, RecordState::queued);
    }
    void resume(std::uint64_t number) {
        Slot* const slot = find(number);
        if (slot == nullptr || state_of(*slot) != RecordState::queued) return;
        set(slot->begun, ticks::now());
        set_state(*slot, RecordState::started);
    }
    void first(std::uint64_t number, std::uint64_t now) {
        if (Slot* const slot = find(number)) set(slot->first, now);
    }
    // `waited` so far; `since`: it waits now, since then; 0: it does not.
    void wait(std::uint64_t number, std::uint64_t waited, std::uint64_t since) {
        Slot* const slot = find(number);
        if (slot == nullptr) return;
        set(slot->waited, waited);
        set(slot->waits_since, since);
    }
    void finish(std::uint64_t number, const char* engine, std::uint64_t sent, std::uint64_t received,
                std::uint64_t now) {
        Slot* const slot = find(number);
        if (slot == nullptr || state_of(*slot) == RecordState::failed) return;
        slot->engine.store(engine, std::memory_order_relaxed);
        set(slot->sent, sent);
        set(slot->received, received);
        end(*slot, RecordState::done, now);
    }
    void fail(std::uint64_t number, const std::string& error, std::uint64_t now);

    // --- from any thread
    // The last ones, oldest first, up to `kept`.
    std::vector<Record> records() const;
    // The last collective, and the collective of that number; nothing if there is none, or if its record has
    // been overwritten.
    std::optional<BegunCall> last_collective() const;
    std::optional<BegunCall> collective(std::uint64_t sequence) const;
    // What the records take.
    std::size_t bytes() const;

  private:
    using Word = std::atomic<std::uint64_t>;
    static constexpr std::size_t call_words = sizeof(Call) / sizeof(std::uint64_t);
    // More records than are kept, so that a reader is not overtaken at once.
    static constexpr std::size_t slots = 1024;
    // Each chunk has as many slots as those before it together: few records need little memory, and many need
    // few chunks.
    static constexpr std::size_t first_slots = 4;
    static constexpr std::size_t chunks = std::countr_zero(slots / first_slots) + 1;
    static constexpr std::size_t slots_of(std::size_t chunk) {
        return chunk == 0 ? first_slots : first_slots << (chunk - 1);
    }

    struct alignas(64) Slot {
        Word version;  // twice the number, and 1 while it becomes that
        std::array<Word, call_words> call;
        Word begun;
        Word ended;
        Word kind;  // state, peer, whether it sends
        Word queued;
        Word first;
        Word waited;
        Word waits_since;
        Word sent;
        Word received;
        Word fingerprint;
        std::atomic<const char*> engine;
    };
    static_assert(sizeof(Slot) == 128);

    static void set(Word& word, std::uint64_t value) { word.store(value, std::memory_order_relaxed); }
    static void set_call(Slot& slot, const Call& call) {
        const auto words = std::bit_cast<std::array<std::uint64_t, call_words>>(call);
        for (std::size_t i = 0; i < call_words; ++i) set(slot.call[i], words[i]);
    }
    static std::uint64_t pack(RecordState state, const Way& way) {
        return static_cast<std::uint64_t>(state) | (way.sends ? 256U : 0U) |
               static_cast<std::uint64_t>(static_cast<std::uint32_t>(way.peer + 1)) << 32;
    }
    static RecordState state_of(const Slot& slot) {
        return static_cast<RecordState>(slot.kind.load(std::memory_order_relaxed) & 255);
    }
    static void set_state(Slot& slot, RecordState state) {
        const std::uint64_t kind = slot.kind.load(std::memory_order_relaxed);
        slot.kind.store((kind & ~std::uint64_t{255}) | static_cast<std::uint64_t>(state),
                        std::memory_order_release);
    }
    static void end(Slot& slot, RecordState state, std::uint64_t now) {
        set(slot.waits_since, 0);
        set(slot.ended, now);
        set_state(slot, state);
    }

    // Where the slot of a record lies.
    struct Place {
        std::size_t chunk;
        std::size_t index;
    };
    static Place place_of(std::uint64_t number) {
        const std::size_t index = number % slots;
        const auto chunk = static_cast<std::size_t>(std::bit_width(index / first_slots));
        return {chunk, chunk == 0 ? index : index - slots_of(chunk)};
    }
    Slot& slot_of(std::uint64_t number) {
        const Place place = place_of(number);
        std::atomic<Slot*>& chunk = chunks_[place.chunk];
        Slot* first = chunk.load(std::memory_order_relaxed);
        if (first == nullptr) {
            chunk.store(first = new Slot[slots_of(place.chunk)](), std::memory_order_release);
        }
        return first[place.index];
    }
    // Null where it has been overwritten.
    Slot* find(std::uint64_t number) {
        if (number == 0 || added() - number >= slots) return nullptr;
        return &slot_of(number);
    }
    std::optional<Record> read(std::uint64_t number) const;
    // The collective in that record, which is read again while it changes.
    std::optional<BegunCall> collective_in(std::uint64_t number) const;
    std::uint64_t added() const { return added_.load(std::memory_order_relaxed); }

    std::atomic<std::uint64_t> added_{0};
    std::array<std::atomic<Slot*>, chunks> chunks_{};

    mutable std::mutex mutex_;  // errors are few
    std::map<std::uint64_t, std::string> errors_;
};

}  // namespace collectives
