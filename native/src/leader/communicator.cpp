#include "leader/communicator.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "leader/buried.hpp"
#include "leader/waits.hpp"

namespace collectives::leader {

using namespace std::chrono_literals;

namespace {

// Streams that nothing else holds up pass a freed call within this time.
constexpr auto passes_within = 300ms;
constexpr std::chrono::microseconds look_again = 1ms;
// The same where graphs hold calls: each look frees one replay, and many may be in a stream.
constexpr std::chrono::microseconds look_again_at_graphs = 50us;
// Many replays, each of which needs a look of its own.
constexpr auto replays_pass_within = 1500ms;
// A call waits for its place on the board; the leader or an abort wakes it.
constexpr auto longest_sleep = 1s;
// Calls of the driver return within this time once their streams are free.
constexpr auto calls_return = 5s;

// What a stream or a graph may still use.
struct Remains {
    Grave grave;
    std::unique_ptr<Launcher> launcher;
    std::vector<std::unique_ptr<cuda::Imported>> mapped;
    std::vector<std::shared_ptr<const cuda::Block>> kept;
    std::vector<std::shared_ptr<const cuda::PrimaryContext>> reached;
};

void keep_for_ever(Remains remains) {
    static std::mutex mutex;
    static auto& kept = *new std::vector<Remains>();
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(remains));
}

const Token& process_token() {
    static const Token token = random_token();
    return token;
}

}  // namespace

Communicator::Communicator(const Member& member, std::string compiler)
    : member_(member),
      compiler_(std::move(compiler)),
      context_(cuda::PrimaryContext::of(member.device)),
      signals_(std::make_shared<cuda::Signals>(context_)) {
    unearth();
    control_ = cuda::allocate(context_, word::bytes(member.size), cuda::For::all_processes);
    own_bytes_ = control_->bytes();
    const cuda::Current current(*context_);
    own_.emplace(context_);
    const cuda::StreamHandle own = own_->handle();
    cuda::set_words(own, control_->address(), 0, word::bytes(member.size));
    cuda::write_value(own, control_->address() + word::epoch, epoch_begins);
    begun_.emplace(signals_->take());
    begun_->set_by(own);
    record_.process = process_token();
    record_.control = control_->exported();
    if (is_leader()) {
        record_.meeting = random_token();
        meeting_.emplace(member.size, record_.meeting);
        board_ = std::make_unique<Board>(member.size);
    }
}

Communicator::~Communicator() { close(); }

void Communicator::meet(const std::vector<Record>& everyone, const Patience& patience) {
    // Others write the control words once this rank has met them.
    for (; !begun_->is_set(); std::this_thread::sleep_for(look_again)) patience();
    begun_.reset();
    if (!is_leader()) meeting_.emplace(member_.rank, member_.size, everyone.front().meeting);
    UniqueFd given = meeting_->meet(board_ ? board_->descriptor() : -1, patience);
    if (!board_) board_ = std::make_unique<Board>(member_.size, std::move(given));
    const int last = is_leader() ? member_.size : 1;
    for (int rank = 0; rank < last; ++rank) {
        cuda::Exported control = everyone[static_cast<std::size_t>(rank)].control;
        if (everyone[static_cast<std::size_t>(rank)].process == process_token()) {
            control.route = cuda::Route::address;
            reach(static_cast<int>(control.device));
        }
        mapped_.push_back(std::make_unique<cuda::Imported>(context_, control, UniqueFd()));
        words_.push_back(mapped_.back()->start());
    }
    const Record& leader = everyone.front();
    const bool is_here = leader.process == process_token();
    const bool is_shared = static_cast<int>(leader.control.device) == member_.device;
    exports_.emplace(member_.device, !is_here    ? Leader::elsewhere
                                     : is_shared ? Leader::on_this_device
                                                 : Leader::on_a_peer);
    if (is_leader()) {
        launcher_ = std::make_unique<Launcher>(context_, member_.size, compiler_, *board_, *meeting_, words_);
    }
}

void Communicator::reach(int device) {
    if (device == member_.device) return;
    const std::shared_ptr<const cuda::PrimaryContext> other = cuda::PrimaryContext::of(device);
    cuda::enable_peer_access(*context_, *other);
    reached_.push_back(other);
}

std::optional<std::string> Communicator::failure() {
    const std::lock_guard lock(mutex_);
    return launcher_ && !ending_ ? launcher_->failure() : std::nullopt;
}

void Communicator::check_alive() const {
    if (ending_) throw Error(ErrorKind::aborted, "the communicator was aborted");
}

Communicator::Call Communicator::publish(Description description, const Place& in, const Place& out,
                                         bool is_captured) {
    check_alive();
    Call call{++issued_, is_captured ? ++captured_ : 0};
    description.captured = call.captured;
    while (call.number > board_->taken().load(std::memory_order_acquire) + Board::depth) {
        const std::uint32_t seen = board_->changes().load(std::memory_order_acquire);
        if (call.number <= board_->taken().load(std::memory_order_acquire) + Board::depth) break;
        futex_wait(board_->changes(), seen, longest_sleep);
        check_alive();
    }
    Entry& entry = board_->entry(member_.rank, call.number);
    entry.description = description;
    entry.in = in;
    entry.out = out;
    entry.number.store(call.number, std::memory_order_release);
    board_->notify();
    return call;
}

void Communicator::pass(const Call& call, cuda::StreamHandle stream) {
    if (call.captured != 0) return pass_captured(call, stream);
    const auto value = static_cast<std::uint32_t>(call.number);
    cuda::write_value(stream, words_[0] + word::ready(member_.rank), value);
    if (is_left_out(wait_of_call)) return;
    cuda::wait_value(stream, control_->address() + word::done, value);
}

void Communicator::pass_captured(const Call& call, cuda::StreamHandle stream) {
    const std::uint32_t index = call.captured - 1;
    const auto ready = [&](int rank) { return words_[0] + word::captured_ready(member_.size, index, rank); };
    if (!is_leader()) {
        const cuda::Pointer done = control_->address() + word::captured_done(index);
        cuda::write_value(stream, ready(member_.rank), 1);
        if (!is_left_out(wait_of_graph)) cuda::wait_equal_value(stream, done, 1);
        cuda::write_value(stream, done, 0);
        return;
    }
    // The graph of the leader holds the kernel itself, since no thread takes part in a replay.
    const Launch launch = launcher_->captured(call.number);
    for (int rank = 1; rank < member_.size; ++rank) {
        if (!is_left_out(wait_of_leaders_graph)) cuda::wait_equal_value(stream, ready(rank), 1);
    }
    if (launch.function != nullptr) cuda::launch(launch.function, launch.grid, stream, &launch.arguments);
    // Each flag is set by one rank and reset by the other, before that one is told to go on.
    for (int rank = 1; rank < member_.size; ++rank) {
        cuda::write_value(stream, ready(rank), 0);
        cuda::write_value(stream, words_[static_cast<std::size_t>(rank)] + word::captured_done(index), 1);
    }
}

std::shared_ptr<cuda::Signal> Communicator::signal_behind(cuda::StreamHandle stream) {
    auto signal = std::make_shared<cuda::Signal>(signals_->take());
    signal->set_by(
        stream);  // without the lock: the driver may wait for room in the stream, which `abort` makes
    const std::lock_guard lock(mutex_);
    std::erase_if(pending_, [](const auto& one) { return one->is_set(); });
    pending_.push_back(signal);
    return signal;
}

void Communicator::compile(DType dtype, Op op) {
    const Use use(*this);
    if (launcher_) launcher_->compile(dtype, op);
}

void Communicator::free_streams() {
    const auto value = static_cast<std::uint32_t>(issued_.load());
    const cuda::StreamHandle own = own_->handle();
    cuda::write_value(own, control_->address() + word::epoch, epoch_begins + 1);
    cuda::write_value(own, control_->address() + word::done, value);
    const std::uint32_t captured = captured_;
    for (std::uint32_t index = 0; index < captured; ++index) {
        cuda::write_value(own, control_->address() + word::captured_done(index), 1);
    }
    if (!is_leader()) return;
    for (int rank = 0; rank < member_.size; ++rank) {
        cuda::write_value(own, words_[0] + word::ready(rank), value);
        for (std::uint32_t index = 0; index < captured; ++index) {
            cuda::write_value(own, words_[0] + word::captured_ready(member_.size, index, rank), 1);
        }
    }
}

Communicator::Use::Use(Communicator& communicator) : communicator_(communicator) {
    const std::lock_guard lock(communicator_.mutex_);
    communicator_.check_alive();
    ++communicator_.inside_;
}

Communicator::Use::~Use() {
    const std::lock_guard lock(communicator_.mutex_);
    --communicator_.inside_;
    communicator_.changed_.notify_all();
}

void Communicator::abort() noexcept {
    {
        std::unique_lock lock(mutex_);
        if (ending_.exchange(true)) {
            changed_.wait(lock, [&] { return is_over_; });
            return;
        }
    }
    if (board_) board_->notify();  // for a call that waits for its place
    bool is_drained = false;
    try {
        const cuda::Current current(*context_);
        free_streams();
        std::optional<cuda::Signal> last;
        if (launcher_) {
            launcher_->stop();
            last.emplace(launcher_->mark(signals_));
        }
        // The leader may still tell this rank's streams about calls before the last, so they are freed again.
        // Of replays of graphs nobody knows how many are in streams, or in which.
        const bool has_graphs = captured_ != 0;
        for (const auto began = Clock::now();;) {
            free_streams();
            std::this_thread::sleep_for(has_graphs ? look_again_at_graphs : look_again);
            const std::lock_guard lock(mutex_);
            std::erase_if(pending_, [](const auto& signal) { return signal->is_set(); });
            is_drained = inside_ == 0 && pending_.empty() && (!last || last->is_set());
            if (is_drained && !has_graphs) break;
            const auto longest = has_graphs && !is_drained ? replays_pass_within : passes_within;
            if (Clock::now() - began >= longest) break;
        }
    } catch (const Error&) {
        if (launcher_) launcher_->stop();  // the context is lost, and all that runs in it
    }
    // A replay of a graph may be under way, of which nobody knows.
    end(is_drained && captured_ == 0);
}

void Communicator::close() noexcept {
    {
        std::unique_lock lock(mutex_);
        if (ending_.exchange(true)) {
            changed_.wait(lock, [&] { return is_over_; });
            return;
        }
        changed_.wait(lock, [&] { return inside_ == 0; });
    }
    if (launcher_) launcher_->stop();
    end(true);
}

void Communicator::end(bool is_drained) noexcept {
    std::unique_lock lock(mutex_);
    // A call that does not return keeps what it uses, and this object.
    if (changed_.wait_for(lock, calls_return, [&] { return inside_ == 0; })) {
        Grave grave{std::move(control_), {}, std::move(pending_)};
        if (meeting_) grave.sockets = meeting_->release();
        if (is_drained) {
            launcher_.reset();
            mapped_.clear();
            kept_.clear();
            own_bytes_ = 0;
            bury(std::move(grave));
        } else {
            keep_for_ever({std::move(grave), std::move(launcher_), std::move(mapped_), std::move(kept_),
                           std::move(reached_)});
        }
        begun_.reset();
        signals_.reset();  // signals that are still looked at keep their memory
        own_.reset();
    }
    is_over_ = true;
    changed_.notify_all();
}

}  // namespace collectives::leader
