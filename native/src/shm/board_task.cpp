#include "shm/board_task.hpp"

#include <algorithm>

#include "base/copy.hpp"
#include "engine/registry.hpp"
#include "shm/tuning.hpp"

namespace collectives {

const char* BoardEngine::refuses(const Request& request) const {
    const Operation& operation = *request.operation;
    const Program& program = operation.program();
    const auto size = static_cast<std::uint32_t>(program.size);
    if (!colocated_.has(Mechanism::board)) return "it is switched off";
    if (!colocated_.all()) return "not all ranks share memory";
    if (operation.sections() > 1 || !operation.flat()) return "the schedule is not one round of messages";
    if (size == 1 || operation.call().root >= size) return "there is no other rank";
    // Links are faster for longer data if each rank has a core, because peers read it in place, and if a few
    // ranks share cores and all send to each other, because links have places (see Places).
    const std::uint64_t slot = colocated_.arena()->geometry().slot_bytes;
    std::uint64_t most = colocated_.is_oversubscribed() ? slot : on_board;
    const bool mutual = program.says && program.sources.size() + 1 == size;
    if (mutual && program.size <= tuning::few_ranks && !adds_by_core(request, colocated_))
        most = std::clamp<std::uint64_t>(most, on_board, size * page_size - 1);
    // A message in one direction is faster over a link, which writes to memory that the reader has not just
    // read.
    if (!mutual && size == 2 && !colocated_.is_oversubscribed()) most = page_size - 1;
    if (std::max(operation.in_bytes(), operation.out_bytes()) > most) return "it is too long for a board";
    return nullptr;
}

namespace {

const RegisteredEngine board_engine("board", EngineOrder::messages_in_memory, [](Surroundings& surroundings) {
    return std::make_unique<BoardEngine>(colocated_of(surroundings));
});

}  // namespace

std::unique_ptr<Task> BoardEngine::make_task() { return std::make_unique<BoardTask>(colocated_); }

void BoardTask::begin(Request& request, const Position& /*position*/) {
    request_ = &request;
    buffers_.begin(operation(), request.in, request.out);
    complete_ = published_ = has_all_ = false;
    sums_seen_ = 0;
    by_core_ = adds_by_core(request, colocated_);
    entry_.begin(request);
}

void BoardTask::end() {
    entry_.leave();
    buffers_.end();
}

bool BoardTask::progress() {
    if (complete_ || !entry_.has_turn()) return false;
    bool moved = false;
    if (!published_) {
        if (!publish()) return false;
        published_ = moved = true;
    }
    if (!has_everything()) return moved;
    if (by_core_) {
        add_sums();
    } else {
        consume();
    }
    entry_.finish();
    entry_.leave();
    complete_ = true;
    return true;
}

bool BoardTask::has_everything() {
    if (!has_all_) has_all_ = by_core_ ? has_every_sum() : entry_.have_all_published([](const FlatLine&) {});
    return has_all_;
}

bool BoardTask::publish() {
    entry_.open();
    if (!program().says) return true;
    if (!entry_.may_publish(published_bytes())) return false;
    if (by_core_) {
        publish_by_core();
    } else {
        const std::byte* const data = buffers_.at(operation().flat()->said);
        board().publish(entry_.number(), request_->fingerprint, data, published_bytes());
    }
    entry_.wake_sleepers();
    return true;
}

const std::byte* BoardTask::published_by(int peer) {
    const Operation::Flat& flat = *operation().flat();
    return board().published(entry_.number(), static_cast<std::size_t>(peer), flat.length) + flat.taken;
}

void BoardTask::consume() {
    for (const Step& step : operation().tasks()) {
        if (step.length == 0) continue;
        switch (step.kind) {
            case StepKind::send:
                break;
            case StepKind::recv:
                copy(step);
                break;
            case StepKind::reduce:
                reduce(step);
                break;
            case StepKind::copy:
                const std::byte* const from = buffers_.at(step.sources[0].place);
                if (from != buffers_.at(step.dst)) copy_bytes(buffers_.at(step.dst), from, step.length);
                break;
        }
    }
}

void BoardTask::copy(const Step& step) {
    copy_bytes(buffers_.at(step.dst), published_by(step.peers[0]), step.length);
}

void BoardTask::reduce(const Step& step) {
    operands_.clear();
    for (const Operation::Source& source : step.sources) {
        operands_.push_back(source.peer >= 0 ? published_by(source.peer) : buffers_.at(source.place));
    }
    reduce_operands(buffers_.at(step.dst), step.length, step.final ? operation().scale() : 1.0);
}

void BoardTask::reduce_operands(std::byte* dst, std::size_t n, double scale) const {
    const ReduceFn kernel = operation().kernel(Stores::cached);
    kernel(dst, operands_.data(), operands_.size(), n / operation().unit(), scale);
}

bool BoardTask::is_late(int peer) {
    std::uint32_t fingerprint = 0;
    const auto rank = static_cast<std::size_t>(peer);
    if (!entry_.is_late(peer)) return false;
    return !by_core_ || !board().has_sum(entry_.number(), board().core_of(rank), fingerprint);
}

std::span<const int> BoardTask::late_candidates() const {
    return by_core_ ? std::span(program().sources) : entry_.missing();
}

void BoardTask::awaited(std::vector<Awaited>& result) {
    if (complete_ || !entry_.has_turn()) return;
    late_.clear();
    if (!published_) {
        if (board().is_open()) entry_.may_publish(published_bytes(), &late_);
    } else {
        for (const int peer : late_candidates()) {
            if (is_late(peer)) late_.push_back(peer);
        }
    }
    for (const int peer : late_) result.push_back({peer, false});
}

bool BoardTask::waits_for(PeerTest test) {
    if (!published_ || has_all_) return Task::waits_for(test);
    const std::span<const int> peers = late_candidates();
    return std::any_of(peers.begin(), peers.end(), [&](int peer) { return test(peer) && is_late(peer); });
}

}  // namespace collectives
