#include "core/recorder.hpp"

#include <algorithm>
#include <bit>

namespace collectives {

namespace {
constexpr int most_tries = 100;  // attempts to read a record that changes meanwhile
}

Recorder::~Recorder() {
    for (const auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

void Recorder::fail(std::uint64_t number, const std::string& error, std::uint64_t now) {
    Slot* const slot = find(number);
    if (slot == nullptr) return;
    {
        const std::lock_guard lock(mutex_);
        errors_.emplace(number, error);
        errors_.erase(errors_.begin(),
                      errors_.lower_bound(added() - std::min<std::uint64_t>(added(), slots)));
    }
    end(*slot, RecordState::failed, now);
}

std::optional<Record> Recorder::read(std::uint64_t number) const {
    const Place place = place_of(number);
    const Slot* const chunk = chunks_[place.chunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return std::nullopt;
    const Slot& slot = chunk[place.index];
    if (slot.version.load(std::memory_order_acquire) != number << 1) return std::nullopt;
    Record record;
    record.number = number;
    const std::uint64_t kind = slot.kind.load(std::memory_order_acquire);
    std::array<std::uint64_t, call_words> call{};
    for (std::size_t i = 0; i < call_words; ++i) call[i] = slot.call[i].load(std::memory_order_relaxed);
    record.queued = slot.queued.load(std::memory_order_relaxed);
    record.begun = slot.begun.load(std::memory_order_relaxed);
    record.first = slot.first.load(std::memory_order_relaxed);
    record.ended = slot.ended.load(std::memory_order_relaxed);
    record.waited = slot.waited.load(std::memory_order_relaxed);
    const std::uint64_t since = slot.waits_since.load(std::memory_order_relaxed);
    record.sent = slot.sent.load(std::memory_order_relaxed);
    record.received = slot.received.load(std::memory_order_relaxed);
    const char* const engine = slot.engine.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.version.load(std::memory_order_relaxed) != number << 1) return std::nullopt;
    record.call = std::bit_cast<Call>(call);
    record.state = static_cast<RecordState>(kind & 255);
    record.sends = (kind & 256) != 0;
    record.peer = static_cast<int>(kind >> 32) - 1;
    if (engine != nullptr) record.engine = engine;
    if (record.state != RecordState::done && record.state != RecordState::failed) {
        const std::uint64_t now = ticks::now();
        if (since != 0 && now > since) record.waited += now - since;
        record.ended = 0;
    }
    return record;
}

std::vector<Record> Recorder::records() const {
    const std::uint64_t newest = added_.load(std::memory_order_acquire);
    std::vector<Record> found;
    const std::uint64_t oldest = newest - std::min<std::uint64_t>(newest, kept) + 1;
    for (std::uint64_t number = oldest; number <= newest; ++number) {
        std::optional<Record> record;
        for (int i = 0; i < most_tries && !record; ++i) record = read(number);
        if (record) found.push_back(std::move(*record));
    }
    const std::lock_guard lock(mutex_);
    for (Record& record : found) {
        const auto error = errors_.find(record.number);
        if (error != errors_.end()) record.error = error->second;
    }
    return found;
}

std::optional<BegunCall> Recorder::collective_in(std::uint64_t number) const {
    const Place place = place_of(number);
    const Slot* const chunk = chunks_[place.chunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return std::nullopt;
    const Slot& slot = chunk[place.index];
    if (slot.version.load(std::memory_order_acquire) != number << 1) return std::nullopt;
    std::array<std::uint64_t, call_words> call{};
    for (std::size_t i = 0; i < call_words; ++i) call[i] = slot.call[i].load(std::memory_order_relaxed);
    const std::uint64_t fingerprint = slot.fingerprint.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.version.load(std::memory_order_relaxed) != number << 1) return std::nullopt;
    const BegunCall found{std::bit_cast<Call>(call), static_cast<std::uint32_t>(fingerprint)};
    return found.call.is_message() ? std::nullopt : std::optional(found);
}

std::optional<BegunCall> Recorder::last_collective() const {
    const std::uint64_t newest = added_.load(std::memory_order_acquire);
    for (std::uint64_t back = 0; back < std::min<std::uint64_t>(newest, kept); ++back) {
        if (const std::optional<BegunCall> found = collective_in(newest - back)) return found;
    }
    return std::nullopt;
}

std::optional<BegunCall> Recorder::collective(std::uint64_t sequence) const {
    const std::uint64_t newest = added_.load(std::memory_order_acquire);
    for (std::uint64_t back = 0; back < std::min<std::uint64_t>(newest, kept); ++back) {
        const std::optional<BegunCall> found = collective_in(newest - back);
        if (!found || found->call.sequence > sequence) continue;
        return found->call.sequence == sequence ? found : std::nullopt;
    }
    return std::nullopt;
}

std::size_t Recorder::bytes() const {
    std::size_t made = 0;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (chunks_[chunk].load(std::memory_order_relaxed) != nullptr) made += slots_of(chunk);
    }
    return made * sizeof(Slot);
}

}  // namespace collectives
