#include "core/links.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/wait.hpp"
#include "link/ports.hpp"
#include "link/registry.hpp"
#include "link/self_link.hpp"

namespace collectives {

namespace {
constexpr auto between_looks = std::chrono::microseconds(200);
// Descriptors that are in use for a moment are free again within this time.
constexpr auto descriptors_return = std::chrono::milliseconds(500);
// Links are made of finished connections for no longer, since the caller's wait may have to end.
constexpr auto connects_for = std::chrono::milliseconds(50);
}  // namespace

Links::Links(std::shared_ptr<Job> job, Identity identity, std::vector<int> job_ranks, Setup setup,
             Surroundings& surroundings, Executor& executor, std::shared_ptr<Sleeper> sleeper, Health& health,
             const Recorder& recorder, const std::atomic<bool>& closing)
    : identity_(std::move(identity)),
      job_ranks_(std::move(job_ranks)),
      setup_(std::move(setup)),
      surroundings_(surroundings),
      executor_(executor),
      sleeper_(std::move(sleeper)),
      health_(health),
      recorder_(recorder),
      closing_(closing),
      dialled_(static_cast<std::size_t>(identity_.size), false),
      links_(static_cast<std::size_t>(identity_.size), nullptr),
      gone_(static_cast<std::size_t>(identity_.size), false) {
    setup_.commons = &surroundings_.commons;
    setup_.waker = sleeper_;
    setup_.silence = job->heartbeats().limit;
    add(identity_.rank, std::make_unique<SelfLink>(describe(identity_.rank)));
    is_first_ = job->enter();
    job_ = std::move(job);  // entered, so `close` has to leave it
}

Transport& Links::transport(const std::string& name) {
    std::unique_ptr<Transport>& place = transports_[name];
    if (!place) {
        try {
            place = make_transport(name, setup_);
        } catch (...) {
            transports_.erase(name);
            throw;
        }
        if (place->capabilities().registers_memory) register_memory_.store(true, std::memory_order_relaxed);
        share(place->colocation());
    }
    return *place;
}

void Links::share(std::shared_ptr<Colocation> colocation) {
    if (colocation == nullptr) return;
    if (Doorbell* const doorbell = colocation->doorbell()) sleeper_->use(*doorbell);
    executor_.share(*colocation);
    const std::lock_guard lock(linking_);
    colocations_.push_back(std::move(colocation));
}

Control& Links::control() {
    if (control_ == nullptr) {
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
            sleeper_->ring();
        };
        if (job_->heartbeats().are_on()) watch_over(events);
        control_ = &job_->control();
        control_->join(identity_, job_ranks_, std::move(events));
    }
    return *control_;
}

void Links::listen(const std::string& name, UniqueFd socket) {
    accept(name);
    control().listen(name, transport(name).meeting(), std::move(socket));
}

void Links::accept(const std::string& name) { control().accept(identity_.group, name, transport(name)); }

std::string Links::listen_in_process(const std::string& name) {
    std::string& port = ports_[name];
    if (port.empty()) port = ports::open(name, transport(name).offer(-1, 0));
    return port;
}

void Links::use_port(int peer, const std::string& name, const std::string& port) {
    transport(name).use_port(peer, port);
}

void Links::route(int peer, const std::string& name, std::vector<std::string> addresses, std::string host) {
    if (peer < 0 || peer >= identity_.size || peer == identity_.rank) {
        throw Error(ErrorKind::invalid, "rank " + std::to_string(peer) + " is not a peer");
    }
    if (addresses.empty()) throw Error(ErrorKind::invalid, "a route needs an address");
    transport(name);  // throws if there is none
    {
        const std::lock_guard lock(routing_);
        routes_[peer] = {name, std::move(addresses), std::move(host)};
    }
    if (routes_.size() + 1 < static_cast<std::size_t>(identity_.size)) return;
    const std::string& first = routes_.begin()->second.transport;
    surroundings_.all_share_memory =
        transport(first).capabilities().shares_memory &&
        std::ranges::all_of(routes_, [&](const auto& route) { return route.second.transport == first; });
    if (!job_->heartbeats().are_on()) return;
    control();
    begin_control_plane();
}

std::string Links::name(int rank) const { return Peer{rank, host_of(rank)}.name(); }

std::string Links::host_of(int rank) const {
    if (rank == identity_.rank) return setup_.host;
    const std::lock_guard lock(routing_);
    const auto place = routes_.find(rank);
    return place == routes_.end() ? std::string() : place->second.host;
}

Peer Links::describe(int peer) const { return {peer, host_of(peer), name(identity_.rank)}; }

bool Links::have_come(const std::vector<int>& peers) const {
    return std::all_of(peers.begin(), peers.end(),
                       [&](int peer) { return links_[static_cast<std::size_t>(peer)] != nullptr; });
}

void Links::dial(int peer) {
    if (dialled_[static_cast<std::size_t>(peer)]) return;
    const auto place = routes_.find(peer);
    if (place == routes_.end()) throw Error(ErrorKind::invalid, "no route to " + name(peer));
    const Route& route = place->second;
    dialled_[static_cast<std::size_t>(peer)] = true;
    Transport& by = transport(route.transport);
    if (by.meeting() == Meeting::process) {
        std::optional<PeerOffer> theirs = ports::find(route.transport, route.addresses[0]);
        if (!theirs) {
            throw Error(ErrorKind::peer_lost, name(peer) + " is gone: it closed the communicator", {peer});
        }
        std::vector<Connection> connections(1);
        connections[0].offer = std::move(*theirs);
        add(peer, by.connect(describe(peer), std::move(connections)));
    } else if (identity_.rank < peer) {
        control().dial(identity_.group, peer, by, route.addresses);
    }
}

void Links::add(int peer, std::unique_ptr<Link> link) {
    if (link->leaves_machine()) executor_.use_network();
    const std::lock_guard lock(linking_);
    links_[static_cast<std::size_t>(peer)] = link.get();
    owned_.push_back(std::move(link));
}

void Links::take_up(Connected connected) {
    const int peer = connected.peer;
    Transport& by = *connected.transport;
    std::vector<std::optional<Connection>>& parts = connections_[peer];
    parts.resize(static_cast<std::size_t>(by.connections()));
    parts[static_cast<std::size_t>(connected.number)] = std::move(connected.connection);
    if (!std::ranges::all_of(parts, [](const auto& part) { return part.has_value(); })) return;
    std::vector<Connection> connections;
    for (auto& part : parts) connections.push_back(std::move(*part));
    connections_.erase(peer);
    std::unique_ptr<Link> link = by.connect(describe(peer), std::move(connections));
    if (!by.capabilities().takes_sockets) {
        const std::lock_guard lock(news_);
        watched_[peer] = link.get();
        if (gone_[static_cast<std::size_t>(peer)]) link->mark_lost();
    }
    add(peer, std::move(link));
}

void Links::take_up_news() {
    std::vector<Connected> arrived;
    {
        const std::lock_guard lock(news_);
        unread_ = false;
        arrived.swap(arrived_);
    }
    // Without the lock: a transport may take a second to connect (RDMA, if no route leads to the peer), and
    // the control thread, which other communicators share, must not wait for it. The caller does hold
    // `Group::running_`: meanwhile this communicator's operations do not move, and its other calls and
    // `close` wait.
    const auto began = Clock::now();
    auto next = arrived.begin();
    for (bool goes_on = true; goes_on && next != arrived.end(); ++next) {
        const int peer = next->peer;
        try {
            take_up(std::move(*next));
        } catch (const Error& error) {
            const std::lock_guard lock(news_);
            failed_.emplace(peer, error);  // thrown when an operation needs the link
            goes_on = false;
        }
        goes_on = goes_on && Clock::now() - began < connects_for;
    }
    if (next == arrived.end()) return;
    arrived.erase(arrived.begin(), next);
    const std::lock_guard lock(news_);
    std::ranges::move(arrived_, std::back_inserter(arrived));
    arrived_ = std::move(arrived);
    unread_ = true;
    executor_.call_attention();
}

bool Links::has_own_message() const { return owned_.front()->announced(Context(), 0).has_value(); }

bool Links::seek_any(const std::vector<int>& peers, bool sends_to_itself) {
    if (are_there(peers)) return true;
    for (const int peer : peers) {
        if (links_[static_cast<std::size_t>(peer)] != nullptr) continue;
        try {
            dial(peer);
        } catch (const Error& error) {
            const std::lock_guard lock(news_);
            failed_.emplace(peer, error);
        }
    }
    take_up_news();
    const bool from_itself = sends_to_itself || has_own_message();
    const std::lock_guard lock(news_);
    const bool all_failed = std::ranges::all_of(
        peers, [&](int peer) { return peer == identity_.rank ? !from_itself : failed_.contains(peer); });
    if (!failed_.empty() && (all_failed || failed_.begin()->first < 0)) throw failed_.begin()->second;
    return are_there(peers);
}

bool Links::seek(const std::vector<int>& peers) {
    if (are_there(peers)) return true;
    for (const int peer : peers) {
        if (links_[static_cast<std::size_t>(peer)] == nullptr) dial(peer);
    }
    take_up_news();
    if (are_there(peers)) return true;
    const std::lock_guard lock(news_);
    for (const auto& [peer, error] : failed_) {
        if (peer < 0 || std::find(peers.begin(), peers.end(), peer) != peers.end()) throw error;
    }
    return false;
}

void Links::open(const std::vector<int>& peers, double timeout, const Interrupted& interrupted,
                 const Call* call) {
    if (are_there(peers)) return;
    const bool is_collective = call != nullptr && !call->is_message();
    Vigil vigil(timeout, identity_.rank, Clock::now());
    while (true) {
        vigil.look(health_, is_collective ? call : nullptr, 0, Clock::now());
        if (seek(peers)) return;
        const auto now = Clock::now();
        vigil.rest(now);  // it may have taken a second, which counts
        if (const Cause* const cause = health_.cause()) {
            if (cause->ends(call == nullptr ? Call() : *call, peers, vigil.began(), now))
                throw cause->error(call);
        }
        if (closing_) throw Error(ErrorKind::aborted, "this communicator is being closed");
        throw_if_out_of_descriptors(now);
        if (vigil.deadline().passed()) {
            std::vector<int> missing;
            for (const int peer : peers) {
                if (links_[static_cast<std::size_t>(peer)] == nullptr) missing.push_back(peer);
            }
            throw Error(ErrorKind::op_timeout,
                        "no connection to " + name_ranks(missing) + " within " +
                            std::to_string(static_cast<int>(seconds_since(vigil.began()))) + " s",
                        missing);
        }
        {
            std::unique_lock lock(news_);
            news_came_.wait_for(lock, vigil.deadline().left(look_for_signals), [&] { return unread_; });
        }
        if (!interrupted) continue;
        if (interrupted()) throw Error(ErrorKind::interrupted, "connecting was interrupted");
        vigil.rest(Clock::now());
    }
}

void Links::throw_if_out_of_descriptors(Clock::time_point now) const {
    if (control_ == nullptr) return;
    const auto since = control_->out_of_descriptors();
    if (since == Clock::time_point{} || now - since < descriptors_return) return;
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    throw Error(ErrorKind::transport_unavailable,
                "this process has no file descriptor left for a connection (ulimit -n is " +
                    std::to_string(limit.rlim_cur) + ")");
}

void Links::compare_calls(double grace) const {
    std::optional<Call> last;
    for (const auto& colocation : colocations_) {
        if (!last) last = colocation->last_collective();
    }
    if (!last) return;
    const Deadline deadline(grace);
    for (Link* const link : links_) {
        if (link == nullptr) continue;
        while (!link->has_begun(last->sequence) && link->lost() == nullptr && !deadline.passed() &&
               !closing_) {
            std::this_thread::sleep_for(between_looks);
        }
        link->throw_disagreement(*last);
        link->compare(*last);
    }
}

void Links::shut_down(std::optional<int> lost) {
    for (const auto& colocation : colocations_) colocation->mark_closed(lost);
    for (const auto& link : owned_) link->shut_down(lost);
}

void Links::close() {
    if (!job_) return;
    if (control_ != nullptr) control_->leave(identity_.group);
    for (const auto& [name, address] : ports_) ports::close(address);
    ports_.clear();
    shut_down();
    arrived_.clear();
    connections_.clear();
    const std::lock_guard lock(linking_);
    owned_.clear();
    std::fill(links_.begin(), links_.end(), nullptr);
    transports_.clear();
    colocations_.clear();
    control_ = nullptr;
    std::exchange(job_, nullptr)->exit();
}

std::shared_ptr<std::byte> Links::allocate(std::size_t bytes) const {
    const std::lock_guard lock(linking_);
    for (const auto& colocation : colocations_) {
        if (std::shared_ptr<std::byte> data = colocation->allocate(bytes)) return data;
    }
    return nullptr;
}

SharedMemoryUse Links::shared_memory() const {
    const std::lock_guard lock(linking_);
    SharedMemoryUse total;
    for (const auto& colocation : colocations_) {
        const SharedMemoryUse use = colocation->memory();
        total.mapped += use.mapped;
        total.touched += use.touched;
        total.staging += use.staging;
        total.heap += use.heap;
    }
    return total;
}

const char* Links::scheme(int peer) const {
    const std::lock_guard lock(linking_);
    const Link* link = links_.at(static_cast<std::size_t>(peer));
    return link == nullptr ? nullptr : link->scheme();
}

std::vector<LinkCount> Links::counts(int peer) const {
    const std::lock_guard lock(linking_);
    const Link* const link = links_.at(static_cast<std::size_t>(peer));
    return link == nullptr ? std::vector<LinkCount>() : link->counts();
}

std::string Links::path(int peer) const {
    const std::lock_guard lock(linking_);
    const Link* const link = links_.at(static_cast<std::size_t>(peer));
    return link == nullptr ? std::string() : link->path();
}

std::uint64_t Links::inbox_bytes() const {
    const std::lock_guard lock(linking_);
    std::uint64_t total = 0;
    for (const auto& link : owned_) total += link->inbox_bytes();
    return total;
}

std::uint64_t Links::bytes_sent() const {
    const std::lock_guard lock(linking_);
    std::uint64_t total = 0;
    for (const auto& link : owned_) total += link->bytes_sent();
    return total;
}

}  // namespace collectives
