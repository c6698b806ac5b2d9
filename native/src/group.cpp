#include "group.hpp"

#include <algorithm>
#include <limits>

#include "ports.hpp"
#include "tcp_link.hpp"

namespace collectives {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t default_slot = 128 << 10;
constexpr std::size_t default_cast_slot = 256 << 10;
constexpr std::size_t default_slice = 128 << 10;
constexpr int spins_with_cores = 2000;
// Where cores are shared: about as long as those on another core need, each of them once.
constexpr int spins_with_mates = 400;
constexpr auto look_again = 50ms;  // how often a wait outside an operation looks for signals

std::size_t multiple_of(std::size_t n, std::size_t unit) {
    return std::max(unit, (n + unit - 1) / unit * unit);
}

Geometry make_geometry(const Group::Options& options) {
    Geometry geometry;
    geometry.size = static_cast<std::uint32_t>(options.identity.size);
    geometry.slot_bytes = options.segment > 0 ? multiple_of(options.segment, cache_line) : default_slot;
    geometry.cast_slot_bytes = options.segment > 0 ? geometry.slot_bytes : default_cast_slot;
    geometry.heap_bytes = heap_reserve(options.identity.size);
    return geometry;
}

Executor::Settings make_settings(const Group::Options& options) {
    constexpr std::size_t largest_unit = 16;
    const int home = options.oversubscribed ? options.home : -1;
    const int spins = !options.oversubscribed ? spins_with_cores : home >= 0 ? spins_with_mates : 0;
    return {options.segment > 0 ? multiple_of(options.segment, largest_unit) : default_slice, spins,
            options.crowded, home};
}

}  // namespace

Group::Group(Options options)
    : identity_(options.identity),
      geometry_(make_geometry(options)),
      settings_(make_settings(options)),
      executor_(settings_, sleeper_, closing_),
      links_(static_cast<std::size_t>(identity_.size), nullptr),
      dialled_(static_cast<std::size_t>(identity_.size), false),
      sent_(static_cast<std::size_t>(identity_.size), 0),
      received_(static_cast<std::size_t>(identity_.size), 0),
      gone_(static_cast<std::size_t>(identity_.size), false) {}

void Group::share(std::shared_ptr<Arena> arena) {
    {
        const std::lock_guard lock(state_);
        arena_ = std::move(arena);
    }
    sleeper_.share(arena_);
    executor_.share(arena_);
}

Control& Group::control() {
    if (!control_) {
        Control::Events events;
        events.connected = [this](Connected connected) {
            const std::lock_guard lock(news_);
            arrived_.push_back(std::move(connected));
            unread_ = true;
            news_came_.notify_all();
            executor_.call_attention();
        };
        events.failed = [this](int peer, const Error& error) {
            const std::lock_guard lock(news_);
            failed_.emplace(peer, error);
            unread_ = true;
            news_came_.notify_all();
            executor_.call_attention();
        };
        events.lost = [this](int peer) {
            const std::lock_guard lock(news_);
            gone_[static_cast<std::size_t>(peer)] = true;
            if (const auto place = watched_.find(peer); place != watched_.end()) place->second->mark_lost();
            sleeper_.ring();
        };
        control_ = std::make_unique<Control>(identity_, std::move(events));
    }
    return *control_;
}

void Group::listen(Scheme scheme, UniqueFd socket) {
    if (scheme == Scheme::shm) {
        if (!arena_) share(Arena::create_shared(geometry_));
        if (arena_->fd() < 0) throw Error(ErrorKind::invalid, "listen for processes before threads");
        control().share(arena_);
    }
    control().listen(scheme, std::move(socket));
}

std::string Group::listen_inproc() {
    if (!arena_) share(Arena::create_private(geometry_));
    if (port_.empty()) port_ = ports::open(arena_);
    return port_;
}

void Group::route(int peer, Scheme scheme, std::vector<std::string> addresses, std::string host) {
    if (peer < 0 || peer >= identity_.size || peer == identity_.rank) {
        throw Error(ErrorKind::invalid, "rank " + std::to_string(peer) + " is not a peer");
    }
    if (addresses.empty()) throw Error(ErrorKind::invalid, "a route needs an address");
    routes_[peer] = {scheme, std::move(addresses), std::move(host)};
    if (routes_.size() + 1 < static_cast<std::size_t>(identity_.size)) return;
    const auto count = [this](Scheme s) {
        return std::count_if(routes_.begin(), routes_.end(),
                             [s](const auto& r) { return r.second.scheme == s; });
    };
    if (count(Scheme::tcp) == 0) executor_.work_together(count(Scheme::inproc) == 0);
}

Peer Group::describe(int peer) const {
    const auto place = routes_.find(peer);
    return {peer, place == routes_.end() ? std::string() : place->second.host};
}

void Group::add_link(int peer, std::unique_ptr<Link> link) {
    if (link->leaves_machine()) executor_.use_network();
    const std::lock_guard lock(linking_);
    links_[static_cast<std::size_t>(peer)] = link.get();
    owned_.push_back(std::move(link));
}

void Group::add_lane(Connected connected) {
    const auto lanes = static_cast<std::size_t>(identity_.lanes);
    std::vector<UniqueFd>& sockets = lanes_[connected.peer];
    sockets.resize(lanes);
    sockets[static_cast<std::size_t>(connected.lane)] = std::move(connected.socket);
    if (!std::all_of(sockets.begin(), sockets.end(), [](const UniqueFd& s) { return bool(s); })) return;
    const Peer peer = describe(connected.peer);
    add_link(peer.rank, std::make_unique<TcpLink>(peer, std::move(sockets), settings_.slice));
    lanes_.erase(peer.rank);
}

bool Group::has_links(const std::vector<int>& peers) const {
    return std::all_of(peers.begin(), peers.end(),
                       [&](int peer) { return links_[static_cast<std::size_t>(peer)] != nullptr; });
}

void Group::dial(int peer) {
    if (dialled_[static_cast<std::size_t>(peer)]) return;
    const auto place = routes_.find(peer);
    if (place == routes_.end()) throw Error(ErrorKind::invalid, "no route to " + describe(peer).name());
    const Route& route = place->second;
    dialled_[static_cast<std::size_t>(peer)] = true;
    if (route.scheme == Scheme::inproc) {
        std::shared_ptr<Arena> theirs = ports::find(route.addresses[0]);
        if (!theirs) {
            throw Error(ErrorKind::peer_lost, describe(peer).name() + " is gone: it closed the communicator",
                        {peer});
        }
        add_link(peer,
                 std::make_unique<ShmLink>(describe(peer), identity_.rank, arena_, std::move(theirs), true));
    } else if (identity_.rank < peer) {
        // One side calls, so that two never cross.
        const int lanes = route.scheme == Scheme::tcp ? identity_.lanes : 1;
        control().dial(peer, route.scheme, route.addresses, lanes);
    }
}

bool Group::seek_links(const std::vector<int>& peers) {
    if (has_links(peers)) return true;
    for (const int peer : peers) {
        if (links_[static_cast<std::size_t>(peer)] == nullptr) dial(peer);
    }
    const std::lock_guard lock(news_);
    unread_ = false;
    for (Connected& connected : arrived_) {
        const int peer = connected.peer;
        if (connected.scheme == Scheme::tcp) {
            add_lane(std::move(connected));
        } else {
            auto link = std::make_unique<ShmLink>(describe(peer), identity_.rank, arena_,
                                                  std::move(connected.arena), false, connected.pid);
            watched_[peer] = link.get();
            if (gone_[static_cast<std::size_t>(peer)]) link->mark_lost();
            add_link(peer, std::move(link));
        }
    }
    arrived_.clear();
    if (has_links(peers)) return true;
    for (const auto& [peer, error] : failed_) {
        if (peer < 0 || std::find(peers.begin(), peers.end(), peer) != peers.end()) throw error;
    }
    return false;
}

void Group::open_links(const std::vector<int>& peers, double timeout, const Interrupted& interrupted) {
    if (has_links(peers)) return;
    const auto began = Clock::now();
    const Deadline deadline(timeout);
    while (!seek_links(peers)) {
        if (closing_) throw Error(ErrorKind::aborted, "this communicator is being closed");
        if (deadline.passed()) {
            std::vector<int> missing;
            for (const int peer : peers) {
                if (links_[static_cast<std::size_t>(peer)] == nullptr) missing.push_back(peer);
            }
            throw Error(ErrorKind::op_timeout,
                        "no connection to " + name_ranks(missing) + " within " +
                            std::to_string(static_cast<int>(seconds_since(began))) + " s",
                        missing);
        }
        {
            std::unique_lock lock(news_);
            news_came_.wait_for(lock, deadline.left(look_again), [&] { return unread_; });
        }
        if (interrupted && interrupted()) {
            throw Error(ErrorKind::interrupted, "connecting was interrupted");
        }
    }
}

void Group::throw_if_unusable() {
    if (closed_ || closing_) throw Error(ErrorKind::aborted, "this communicator is closed");
    const std::lock_guard lock(state_);
    if (broken_) throw *broken_;
}

void Group::break_with(const Error& cause) {
    {
        const std::lock_guard lock(state_);
        if (broken_) return;
        if (cause.kind() == ErrorKind::interrupted) {
            broken_.emplace(ErrorKind::aborted,
                            std::string("this communicator can't be used any more: ") + cause.what());
        } else {
            broken_.emplace(cause);
        }
    }
    if (arena_) arena_->header().closed.store(1, std::memory_order_release);
    for (const auto& link : owned_) link->shut_down();
}

void Group::connect(const std::vector<int>& peers, double timeout, const Interrupted& interrupted) {
    const std::lock_guard lock(running_);
    throw_if_unusable();
    try {
        open_links(peers, timeout, interrupted);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::invalid) break_with(error);
        throw;
    }
}

Call Group::next_call(const Operation& operation) {
    Call call = operation.call();
    call.epoch = identity_.epoch;
    if (call.collective != static_cast<std::uint8_t>(Collective::send)) {
        call.sequence = sequence_++;
        return call;
    }
    // Point to point: both ends count their messages.
    const auto& step = operation.program().steps.at(0);
    const auto peer = static_cast<std::size_t>(step.peers.at(0));
    call.sequence = step.kind == StepKind::send ? sent_[peer]++ : received_[peer]++;
    return call;
}

Request Group::request(const Operation& operation, std::byte* in, std::byte* out, double timeout) {
    Request request;
    request.operation = &operation;
    request.call = next_call(operation);
    request.in = in;
    request.out = out;
    request.links = links_;
    request.timeout = timeout;
    return request;
}

void Group::run_locked(const Operation& operation, std::byte* in, std::byte* out, double timeout,
                       const Interrupted& interrupted) {
    throw_if_unusable();
    try {
        open_links(operation.program().peers, timeout, interrupted);
        Request wanted = request(operation, in, out, timeout);
        wanted.interrupted = &interrupted;
        executor_.run(wanted);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::invalid) break_with(error);
        throw;
    }
}

void Group::run(const std::shared_ptr<const Operation>& operation, std::byte* in, std::byte* out,
                double timeout, const Interrupted& interrupted) {
    bool behind = false;
    {
        const std::lock_guard lock(queue_);
        behind = serving_ || !jobs_.empty();
    }
    if (!behind) {
        const std::lock_guard lock(running_);
        run_locked(*operation, in, out, timeout, interrupted);
        return;
    }
    const std::shared_ptr<Job> job = start(operation, in, out, timeout);
    wait(*job, std::numeric_limits<double>::infinity(), interrupted);
}

std::shared_ptr<Job> Group::start(std::shared_ptr<const Operation> operation, std::byte* in, std::byte* out,
                                  double timeout) {
    auto job = std::make_shared<Job>();
    job->operation = std::move(operation);
    job->in = in;
    job->out = out;
    job->timeout = timeout;
    const std::lock_guard lock(queue_);
    if (stop_) throw Error(ErrorKind::aborted, "this communicator is closed");
    jobs_.push_back(job);
    if (!progress_.joinable()) progress_ = std::thread([this] { serve(); });
    if (serving_) {
        executor_.call_attention();
    } else {
        queued_.notify_one();
    }
    return job;
}

void Group::serve() {
    std::unique_lock lock(queue_);
    while (true) {
        queued_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        serving_ = true;
        lock.unlock();
        {
            const std::lock_guard running(running_);
            drive();
        }
        lock.lock();
        serving_ = false;
    }
}

void Group::drive() {
    Jobs under_way;
    while (true) {
        take_jobs(under_way);
        if (under_way.empty()) return;
        try {
            free_held();
            if (!executor_.work()) continue;
            executor_.retire();
            finish(under_way, std::nullopt);
        } catch (const Error& error) {
            fail(under_way, error);
        } catch (const std::exception& error) {
            fail(under_way, Error(ErrorKind::aborted, error.what()));
        }
    }
}

void Group::fail(Jobs& under_way, const Error& error) {
    if (error.kind() == ErrorKind::invalid) {
        executor_.retire();
        finish(under_way, error);
        return;
    }
    break_with(error);
    held_.clear();
    executor_.clear();
    finish(under_way, error);
    while (!under_way.empty()) finish(under_way, broken());
}

void Group::take_jobs(Jobs& under_way) {
    while (under_way.size() < most_at_a_time) {
        {
            const std::lock_guard lock(queue_);
            if (jobs_.empty()) return;
            under_way.push_back(jobs_.front());
            jobs_.pop_front();
        }
        try {
            // While others are under way the group can be used, and what ends them ends this one.
            if (under_way.size() == 1) throw_if_unusable();
            const Job& job = *under_way.back();
            Run& run = executor_.add(request(*job.operation, job.in, job.out, job.timeout));
            run.hold(true);
            held_.push_back(&run);
        } catch (const Error& error) {
            finish(under_way, error);
        }
    }
}

void Group::free_held() {
    std::erase_if(held_, [&](Run* run) {
        try {
            if (!seek_links(run->request().operation->program().peers)) return false;
            run->hold(false);
        } catch (...) {
            run->fail(std::current_exception());
        }
        return true;
    });
}

void Group::finish(Jobs& under_way, std::optional<Error> error) {
    const std::lock_guard lock(queue_);
    under_way.front()->error = std::move(error);
    under_way.front()->done = true;
    under_way.pop_front();
    finished_.notify_all();
}

bool Group::done(const Job& job) {
    const std::lock_guard lock(queue_);
    return job.done;
}

bool Group::wait(const Job& job, double timeout, const Interrupted& interrupted) {
    const Deadline deadline(timeout);
    std::unique_lock lock(queue_);
    while (!job.done) {
        if (deadline.passed()) return false;
        finished_.wait_for(lock, deadline.left(look_again));
        if (!job.done && interrupted) {
            lock.unlock();
            const bool stop = interrupted();
            lock.lock();
            if (stop) throw Error(ErrorKind::interrupted, "waiting was interrupted; the operation goes on");
        }
    }
    if (job.error) throw *job.error;
    return true;
}

const char* Group::link_scheme(int peer) {
    const std::lock_guard lock(linking_);
    const Link* link = links_.at(static_cast<std::size_t>(peer));
    return link == nullptr ? nullptr : link->scheme();
}

std::uint64_t Group::bytes_sent() {
    const std::lock_guard lock(linking_);
    std::uint64_t total = 0;
    for (const auto& link : owned_) total += link->bytes_sent();
    return total;
}

std::shared_ptr<Arena> Group::arena() {
    const std::lock_guard lock(state_);
    return arena_;
}

std::optional<Error> Group::broken() {
    const std::lock_guard lock(state_);
    return broken_;
}

void Group::close() {
    if (closing_.exchange(true)) return;
    sleeper_.ring();
    {
        const std::lock_guard lock(queue_);
        stop_ = true;
        queued_.notify_all();
    }
    if (progress_.joinable()) progress_.join();
    const std::lock_guard lock(running_);
    closed_ = true;
    control_.reset();
    if (!port_.empty()) ports::close(port_);
    if (arena_) arena_->header().closed.store(1, std::memory_order_release);
    {
        const std::lock_guard linking(linking_);
        for (const auto& link : owned_) link->shut_down();
        owned_.clear();
        std::fill(links_.begin(), links_.end(), nullptr);
    }
    arrived_.clear();
    lanes_.clear();
    // Arrays from the heap keep the arena as long as they need it.
    executor_.close();
    sleeper_.close();
    const std::lock_guard state(state_);
    arena_.reset();
}

}  // namespace collectives
