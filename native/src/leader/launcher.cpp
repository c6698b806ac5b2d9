#include "leader/launcher.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "leader/control.hpp"
#include "leader/waits.hpp"

namespace collectives::leader {

using namespace std::chrono_literals;

namespace {

// While a rank of this host makes its calls, looking is faster than being woken.
constexpr int looks_before_sleep = 2000;
// Every call wakes the thread, and so does its end.
constexpr auto asleep_at_most = 1s;
// Ranks that make different calls learn it within this time.
constexpr auto compared_within = 10s;

}  // namespace

Launcher::Launcher(std::shared_ptr<const cuda::PrimaryContext> context, int size, const std::string& compiler,
                   const Board& board, Meeting& meeting, std::vector<cuda::Pointer> control)
    : context_(std::move(context)),
      size_(size),
      board_(board),
      control_(std::move(control)),
      imports_(context_, meeting),
      kernels_(context_, compiler),
      signals_(std::make_shared<cuda::Signals>(context_)),
      stream_(context_) {
    thread_ = std::thread([this] { serve(); });
}

Launcher::~Launcher() { stop(); }

void Launcher::stop() {
    stop_.store(true, std::memory_order_seq_cst);
    board_.notify();
    if (thread_.joinable()) thread_.join();
}

cuda::Signal Launcher::mark(const std::shared_ptr<cuda::Signals>& signals) {
    const cuda::Current current(*context_);
    cuda::Signal signal = signals->take();
    signal.set_by(stream_.handle());
    return signal;
}

std::optional<std::string> Launcher::failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
}

void Launcher::compile(DType dtype, Op op) {
    const cuda::Current current(*context_);
    const cuda::RelaxedCapture relaxed;
    const std::lock_guard lock(compiling_);
    static_cast<void>(kernels_.move());
    if (supports(dtype, op)) static_cast<void>(kernels_.reduction(dtype, op));
}

void Launcher::serve() {
    try {
        const cuda::Current current(*context_);
        const cuda::RelaxedCapture relaxed;  // what it does must not end another thread's capture
        while (wait_for_all(next_)) {
            const Description wanted = board_.entry(0, next_).description;
            Launch ready = prepare(next_);
            if (wanted.captured != 0) {
                imports_.keep_for_graphs(next_);
                const std::lock_guard lock(mutex_);
                captured_[next_] = ready;
                changed_.notify_all();
            } else {
                launch(next_, ready);
            }
            board_.taken().store(next_, std::memory_order_release);
            board_.notify();
            ++next_;
        }
    } catch (const Error& error) {
        const std::lock_guard lock(mutex_);
        if (!stop_) failure_ = error.what();
    } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        failure_ = error.what();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
}

bool Launcher::wait_for_all(std::uint64_t number) {
    for (int rank = 0; rank < size_; ++rank) {
        const Entry& entry = board_.entry(rank, number);
        for (int looks = 0; entry.number.load(std::memory_order_acquire) != number; ++looks) {
            if (stop_) return false;
            // While this rank has made no call either, nobody waits for this thread.
            if (rank != 0 && looks < looks_before_sleep) continue;
            const std::uint32_t seen = board_.changes().load(std::memory_order_acquire);
            if (entry.number.load(std::memory_order_acquire) == number || stop_) continue;
            if (rank == 0) trim_if_idle();
            futex_wait(board_.changes(), seen, asleep_at_most);
        }
    }
    return !stop_;
}

void Launcher::rest() {
    if (stop_) throw Error(ErrorKind::aborted, "the communicator is being closed");
    std::this_thread::sleep_for(100us);
}

void Launcher::trim_if_idle() {
    if (last_ && !last_->is_set()) return;
    last_.reset();
    imports_.trim();
}

Launch Launcher::prepare(std::uint64_t number) {
    const Description& first = board_.entry(0, number).description;
    Launch ready;
    cuda::KernelArguments& a = ready.arguments;
    a.count = first.count;
    a.size = static_cast<unsigned>(size_);
    a.root = first.root;
    a.wanted = epoch_begins;
    a.divisor = a.size;
    a.form = first.form;
    a.op = first.op;
    for (int rank = 0; rank < size_; ++rank) {
        const Entry& entry = board_.entry(rank, number);
        if (entry.description != first) {
            // The control plane finds out what these calls are.
            for (const auto until = Clock::now() + compared_within; Clock::now() < until;) rest();
            throw Error(ErrorKind::aborted, "ranks 0 and " + std::to_string(rank) + " made different calls");
        }
        const auto place = static_cast<std::size_t>(rank);
        a.in[place] = imports_.find(rank, entry.in, number, [this] { rest(); });
        a.out[place] = imports_.find(rank, entry.out, number, [this] { rest(); });
        a.epoch[place] = control_[place] + word::epoch;
    }
    if (first.count == 0) return ready;
    const auto dtype = static_cast<DType>(first.dtype);
    const bool reduces = first.reduces != 0;
    const std::lock_guard lock(compiling_);
    ready.function = reduces ? kernels_.reduction(dtype, static_cast<Op>(first.op)) : kernels_.move();
    ready.grid = kernels_.grid(first.form, size_, first.count * (reduces ? size_of(dtype) : 1));
    return ready;
}

void Launcher::launch(std::uint64_t number, const Launch& ready) {
    const auto value = static_cast<std::uint32_t>(number);
    for (int rank = 0; rank < size_; ++rank) {
        if (is_left_out(wait_of_kernel)) continue;
        cuda::wait_value(stream_.handle(), control_[0] + word::ready(rank), value);
    }
    if (ready.function != nullptr)
        cuda::launch(ready.function, ready.grid, stream_.handle(), &ready.arguments);
    for (const cuda::Pointer control : control_)
        cuda::write_value(stream_.handle(), control + word::done, value);
    last_.emplace(signals_->take());
    last_->set_by(stream_.handle());
}

Launch Launcher::captured(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || captured_.contains(number); });
    const auto found = captured_.find(number);
    if (found == captured_.end()) {
        throw Error(ErrorKind::aborted, failure_.value_or("the communicator is being closed"));
    }
    const Launch ready = found->second;
    captured_.erase(found);
    return ready;
}

}  // namespace collectives::leader
