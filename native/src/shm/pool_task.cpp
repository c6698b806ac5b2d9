#include "shm/pool_task.hpp"

#include <algorithm>

#include "engine/registry.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

namespace {

// Bytes of an array that is pooled, at least.
constexpr std::uint64_t smallest_pooled = 4 << 10;
// If the size of the last-level cache is unknown: results of all ranks together that are larger than this are
// stored with streaming stores.
constexpr std::uint64_t most_cached = 4 << 20;

// What a rank announces: whether peers can read and write its arrays.
constexpr std::byte elsewhere{0};
constexpr std::byte in_heap{1};

const RegisteredEngine pool_engine("pool", EngineOrder::sums_in_memory, [](Surroundings& surroundings) {
    return std::make_unique<PoolEngine>(colocated_of(surroundings),
                                        std::make_unique<ScheduleEngine>(surroundings));
});

}  // namespace

const char* PoolEngine::refuses(const Request& request) const {
    const Operation& operation = *request.operation;
    const Program& program = operation.program();
    if (!colocated_.has(Mechanism::pool)) return "it is switched off";
    if (!colocated_.all()) return "not all ranks share memory";
    if (!program.pooled || operation.sections() > 1) return "the schedule has no one place to add up";
    if (operation.out_bytes() < smallest_pooled) return "it is too short";
    if (!colocated_.is_oversubscribed() && program.size > static_cast<int>(Pool::most_with_cores)) {
        return "so many ranks with a core each have not enough to do there";
    }
    // The pool cuts arrays at cache lines.
    if (is_blocks(operation.dtype())) return "its elements are blocks";
    if (program.size > 2 && rounds_each_time(operation.dtype())) {
        return "it would round once for each rank";
    }
    return nullptr;
}

bool PoolTask::is_in_heap() const {
    return colocated_.arena()->in_heap(request_->in, operation().in_bytes()) &&
           colocated_.arena()->in_heap(request_->out, operation().out_bytes());
}

void PoolTask::begin(Request& request, const Position& position) {
    request_ = &request;
    complete_ = announced_ = has_all_ = in_pool_ = false;
    may_exchange_ = is_in_heap();
    path_ = may_exchange_ ? Path::undecided : Path::pool;
    if (may_exchange_) messages_->begin(request, position);
    entry_.begin(request);
}

void PoolTask::end() {
    entry_.leave();
    if (may_exchange_) messages_->end();
}

void PoolTask::abandon() {
    if (path_ == Path::messages) return messages_->abandon();
    colocated_.abandon(*request_);
}

bool PoolTask::progress() {
    if (path_ == Path::messages) return messages_->progress();
    if (complete_ || !entry_.has_turn()) return false;
    bool moved = false;
    if (!announced_) {
        entry_.open();
        if (!entry_.may_publish(1)) return false;
        announce();
        announced_ = moved = true;
    }
    has_all_ = has_all_ || entry_.have_all_published([&](const FlatLine& line) {
        if (line.data.front() != in_heap) path_ = Path::pool;
    });
    if (path_ == Path::undecided) {
        if (!has_all_) return moved;
        entry_.board().all_published(entry_.number());
        entry_.leave();
        path_ = Path::messages;
        return true;
    }
    moved |= advance_pool();
    if (!has_all_ || !colocated_.pool->is_complete()) return moved;
    entry_.finish();
    entry_.leave();
    complete_ = true;
    return true;
}

void PoolTask::announce() {
    const std::byte where = may_exchange_ ? in_heap : elsewhere;
    entry_.board().publish(entry_.number(), request_->fingerprint, &where, sizeof(where));
    entry_.wake_sleepers();
}

bool PoolTask::advance_pool() {
    std::unique_ptr<Pool>& pool = colocated_.pool;
    if (!in_pool_) {
        in_pool_ = true;
        if (!pool) {
            pool = std::make_unique<Pool>(operation().program().rank, colocated_.arenas(*request_),
                                          colocated_.is_oversubscribed(),
                                          colocated_.has(Mechanism::pool_copies));
        }
        const Pool::Kernel kernel{operation().kernel(Stores::cached), operation().scale(),
                                  operation().unit()};
        const std::uint64_t bytes = operation().out_bytes();
        // In place a result overwrites the input, which is still in the caches.
        const auto size = static_cast<std::uint64_t>(operation().program().size);
        const bool streaming = !request_->is_in_place() &&
                               (request_->knows_caches ? request_->stores == Stores::streaming
                                                       : operation().call_bytes() * size > most_cached);
        pool->open(request_->in, request_->out, bytes, kernel,
                   streaming ? Stores::streaming : Stores::cached);
    }
    ranks_.clear();
    const bool moved = pool->advance(ranks_);
    if (!ranks_.empty()) colocated_.wake(ranks_);
    return moved;
}

void PoolTask::awaited(std::vector<Awaited>& result) {
    if (path_ == Path::messages) return messages_->awaited(result);
    if (complete_ || !entry_.has_turn()) return;
    ranks_.clear();
    if (!announced_) {
        if (entry_.board().is_open()) entry_.may_publish(1, &ranks_);
    } else {
        if (in_pool_) colocated_.pool->awaited(ranks_);
        if (ranks_.empty() && !has_all_) {
            for (const int peer : entry_.missing()) {
                if (entry_.is_late(peer)) ranks_.push_back(peer);
            }
        }
    }
    for (const int peer : ranks_) result.push_back({peer, false});
}

bool PoolTask::waits_for(PeerTest test) {
    if (path_ == Path::messages) return messages_->waits_for(test);
    if (!announced_ || in_pool_ || has_all_ || complete_) return Task::waits_for(test);
    const std::span<const int> peers = entry_.missing();
    return std::any_of(peers.begin(), peers.end(),
                       [&](int peer) { return test(peer) && entry_.is_late(peer); });
}

}  // namespace collectives
