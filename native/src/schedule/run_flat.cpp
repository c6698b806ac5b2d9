// Operations on a board: what is said and taken there, and the arrival of those that go on in a Pool.
#include <algorithm>

#include "base/copy.hpp"
#include "schedule/run.hpp"

namespace collectives {

namespace {

// What those say who may go on in a Pool.
constexpr std::byte elsewhere{0};
constexpr std::byte in_heap{1};

}  // namespace

bool Run::may_be_flat() const {
    // All that it depends on is the same on every rank.
    const Program& program = operation().program();
    const auto size = static_cast<std::uint32_t>(program.size);
    if (!has(Mechanism::board) || !operation().flat() || !workshop_.together || size == 1 || request_.call.root >= size) return false;
    // Of ranks that have a core each, most had better read large data where it lies, and a few that share
    // cores and all send to each other let it change places.
    std::uint64_t most = workshop_.crowded ? workshop_.arena->geometry().slot_bytes : on_board;
    const bool mutual = program.says && program.sources.size() + 1 == size && !program.shared;
    if (mutual && size <= most_apart) most = std::clamp<std::uint64_t>(most, on_board, size * page_size - 1);
    // What only goes one way is better written to memory that the reader has not just read.
    if (!mutual && size == 2 && !workshop_.crowded) most = page_size - 1;
    return std::max(operation().in_bytes(), operation().out_bytes()) <= most;
}

bool Run::may_exchange() const {
    // All that it depends on is the same on both.
    const Program& program = operation().program();
    if (!has(Mechanism::exchange) || program.size != 2 || !workshop_.pooling || workshop_.crowded || program.shared) return false;
    if (!operation().flat() || !operation().flat()->given) return false;
    std::uint64_t most = workshop_.arena->geometry().slot_bytes;
    // What is not added up the kernel may copy faster.
    if (program.combines == 0 && reads_quickly()) most = std::min(most, pulled_from - 1);
    const std::uint64_t part = operation().flat()->part;
    return part > FlatLine::inline_bytes && part <= most;  // where it lies is said in the line
}

bool Run::reads_quickly() const {
    // A communicator of two ranks begins with a barrier, so their link is there.
    const ShmLink* const peer = shared_memory(1 - operation().program().rank);
    return peer != nullptr && peer->arena_of_peer()->header().reads == Reads::quickly &&
           workshop_.arena->header().reads == Reads::quickly;
}

std::uint64_t Run::shown_at() const {
    const bool overwritten = operation().program().combines > 0 && is_in_place();
    const std::byte* const given = at(*operation().flat()->given);
    if (overwritten || !workshop_.arena->in_heap(given, length_said())) return 0;
    return workshop_.arena->offset_of(given);
}

void Run::take_number(std::span<const std::unique_ptr<Run>> earlier) {
    if (workshop_.boards.empty()) {
        const auto size = static_cast<std::size_t>(operation().program().size);
        workshop_.boards.assign(size, Flat(static_cast<std::size_t>(operation().program().rank), size));
    }
    board_ = &workshop_.boards[request_.call.root];
    number_ = board_->next();
    has_come_ = false;
    in_pool_ = false;
    said_ = 0;
    taken_ = 0;
    const auto last = std::find_if(earlier.rbegin(), earlier.rend(), [&](const auto& run) {
        return run->way_ != Way::links && run->board_ == board_;
    });
    before_there_ = last == earlier.rend() ? nullptr : last->get();
}

bool Run::has_its_turn() {
    // One that turned out to go over links may be over long before those that it is behind.
    while (before_there_ != nullptr && before_there_->way_ == Way::links) {
        before_there_ = before_there_->before_there_;
    }
    return before_there_ == nullptr || before_there_->complete();
}

bool Run::advance_on_board() {
    if (complete() || !has_its_turn()) return false;
    bool moved = false;
    if (!has_come_) {
        if (!say()) return false;
        has_come_ = moved = true;
    }
    const bool all = by_core_ ? has_every_sum() : has_everyone_said();
    if (way_ == Way::open) {
        if (!all) return moved;
        board_->all_said(number_);
        way_ = Way::links;
        return true;
    }
    if (way_ == Way::pool) moved |= advance_pool();
    if (!all || (way_ == Way::pool && !workshop_.pool->is_complete())) return moved;
    const Program& program = operation().program();
    if (by_core_) {
        add_sums();
    } else if (is_said() && !take_what_was_said()) {
        return moved;
    }
    if (way_ == Way::exchange && !has_exchanged()) return moved;
    if (!program.says) {
        board_->say(number_, context_.fingerprint, nullptr, 0);
        wake_sleepers();
    } else if (program.sources.size() + 1 == static_cast<std::size_t>(program.size)) {
        board_->all_said(number_);
    }
    unfinished_ = 0;
    return true;
}

bool Run::say() {
    const Program& program = operation().program();
    if (!board_->is_open()) {
        const auto owner = static_cast<int>(request_.call.root);
        board_->open(owner == program.rank ? workshop_.arena : shared_memory(owner)->arena_of_peer());
    }
    if (!program.says) return true;
    if (!board_->may_say(number_, length_said())) return false;
    if (by_core_) {
        say_by_core();
    } else if (way_ == Way::exchange) {
        const std::uint64_t offset = shown_at();
        shows_memory_ = offset != 0;
        board_->say_where(number_, context_.fingerprint, offset, at(*operation().flat()->given),
                          length_said());
    } else if (way_ == Way::flat) {
        board_->say(number_, context_.fingerprint, at(operation().flat()->said), length_said());
    } else {
        const std::byte where = way_ == Way::open ? in_heap : elsewhere;
        board_->say(number_, context_.fingerprint, &where, sizeof(where));
    }
    wake_sleepers();
    return true;
}

bool Run::has_everyone_said() {
    const std::span<const int> sources = operation().program().sources;
    const std::uint64_t number = number_;
    const FlatLine* const lines = board_->lines(number);
    std::size_t i = said_;
    for (; i < sources.size(); ++i) {
        std::uint32_t fingerprint = 0;
        const FlatLine& line = lines[sources[i]];
        if (!Flat::has_said(number, line, fingerprint)) break;
        if (fingerprint != context_.fingerprint) {
            shared_memory(sources[i])->throw_other_call(request_.call);
        }
        if (way_ == Way::open && line.data.front() != in_heap) go_to_pool();
    }
    said_ = i;
    return i == sources.size();
}

void Run::go_to_pool() {
    way_ = Way::pool;
    unfinished_ = 1;
    turns_.clear();
    active_.clear();
}

const std::byte* Run::said_by(int peer) const {
    const Operation::Flat& flat = *operation().flat();
    const auto rank = static_cast<std::size_t>(peer);
    if (way_ == Way::exchange) {
        const std::uint64_t offset = board_->where(number_, rank);
        if (offset != 0) return shared_memory(peer)->arena_of_peer()->at(offset);
        return board_->said(number_, rank, flat.part);
    }
    return board_->said(number_, rank, flat.length) + flat.taken;
}

bool Run::has_exchanged() {
    const int peer = operation().program().sources.front();
    const auto own = static_cast<std::size_t>(operation().program().rank);
    const auto other = static_cast<std::size_t>(peer);
    if (board_->where(number_, other) != 0 && !board_->has_taken(number_, own)) {
        shared_memory(peer)->ensure_valid(request_.call);
        board_->take(number_);
        wake_sleepers();
    }
    return !shows_memory_ || board_->has_taken(number_, other);
}

bool Run::take_what_was_said() {
    const std::vector<Task>& all = tasks();
    for (; taken_ < all.size(); ++taken_) {
        const Task& task = all[taken_];
        if (task.length == 0) continue;
        switch (task.kind) {
            case StepKind::send:
                break;
            case StepKind::recv:
                take_copy(task);
                break;
            case StepKind::reduce:
                if (!reduce_what_was_said(task)) return false;
                break;
            case StepKind::copy:
                if (at(task.sources[0].place) != at(task.dst)) {
                    copy_bytes(at(task.dst), at(task.sources[0].place), task.length);
                }
                break;
        }
    }
    return true;
}

void Run::take_copy(const Task& task) { copy_bytes(at(task.dst), said_by(task.peers[0]), task.length); }

bool Run::reduce_what_was_said(const Task& task) {
    const bool together = is_done_together(task);
    if (together && together_ && together_->is_open()) return work_together(task);
    operands_.clear();
    for (const Operation::Source& source : task.sources) {
        operands_.push_back(source.peer >= 0 ? said_by(source.peer) : at(source.place));
    }
    if (!together) {
        apply(task, at(task.dst), task.length, Stores::cached);
        return true;
    }
    if (!together_) together_ = make_together();
    together_->open(piece_, operands_, at(task.dst), task.length, operation().unit());
    return work_together(task);
}

bool Run::is_late(int peer) const {
    const auto rank = static_cast<std::size_t>(peer);
    std::uint32_t fingerprint = 0;
    // One that is in another operation says nothing to this one.
    const bool said = board_->has_said(number_, rank, fingerprint) && fingerprint == context_.fingerprint;
    return !said && !(by_core_ && board_->has_sum(number_, board_->core_of(rank), fingerprint));
}

void Run::late_on_board(std::vector<int>& ranks) {
    if (!has_its_turn()) return;
    if (!has_come_) {
        if (board_->is_open()) board_->may_say(number_, length_said(), &ranks);
        return;
    }
    if (in_pool_) workshop_.pool->awaited(ranks);
    if (together_ && together_->is_open()) together_->awaited(ranks);
    if (!ranks.empty()) return;
    const std::vector<int>& sources = operation().program().sources;
    if (shows_memory_ && said_ == sources.size()) ranks.push_back(sources.front());
    for (std::size_t i = by_core_ ? 0 : said_; i < sources.size(); ++i) {
        if (is_late(sources[i])) ranks.push_back(sources[i]);
    }
}

void Run::wake_sleepers() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (board_->sleepers().load(std::memory_order_seq_cst) > 0) wake(operation().program().peers);
}

void Run::set_asleep(bool asleep) {
    const bool told = asleep && way_ != Way::links && board_->is_open();
    if (told == asleep_) return;
    asleep_ = told;
    if (told) {
        board_->sleepers().fetch_add(1, std::memory_order_seq_cst);
    } else {
        board_->sleepers().fetch_sub(1, std::memory_order_seq_cst);
    }
}

}  // namespace collectives
