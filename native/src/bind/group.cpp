// Groups, and tickets for their operations in progress.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "bind/owners.hpp"
#include "bind/transfer.hpp"
#include "link/registry.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

struct Ticket {
    std::shared_ptr<Group> group;
    std::shared_ptr<Work> work;

    bool done() const { return group->done(*work); }
    // Sender and number of elements of a received message, after the operation is done.
    std::pair<int, std::uint64_t> receipt() const { return {work->receipt.source, work->receipt.count}; }

    void wait(std::optional<double> timeout) const {
        const nb::gil_scoped_release nogil;
        if (!group->wait(*work, timeout.value_or(std::numeric_limits<double>::infinity()), interrupted)) {
            throw Error(ErrorKind::op_timeout, "the operation is still running");
        }
    }
};

// The ticket of an operation that Python code runs.
struct GeneralizedTicket : Ticket {
    // Returns false if the operation has ended before it could begin.
    bool wait_until_begun() const {
        const nb::gil_scoped_release nogil;
        while (true) {
            const auto state = work->generalized->wait(look_for_signals);
            if (state != GeneralizedRequest::State::waiting) return state == GeneralizedRequest::State::begun;
            if (interrupted()) throw Error(ErrorKind::interrupted, "waiting was interrupted");
        }
    }
    void complete() const { work->generalized->complete(); }
    void fail(const std::string& kind, const std::string& message, std::vector<int> ranks) const {
        work->generalized->fail(Error(kind_named(kind), message, std::move(ranks)));
    }
};

GroupId group_id(const nb::bytes& context) {
    GroupId id{};
    if (context.size() != id.size()) throw nb::value_error("context must have 16 bytes");
    std::copy_n(reinterpret_cast<const std::byte*>(context.c_str()), context.size(), id.begin());
    return id;
}

struct PyJob {
    // Seconds.
    PyJob(double interval, double limit) {
        const auto time = [](double seconds) {
            constexpr double most = 1e9;
            return std::chrono::duration_cast<std::chrono::nanoseconds>(
                std::chrono::duration<double>(std::clamp(seconds, 0.0, most)));
        };
        if (!(interval > 0)) throw nb::value_error("the interval of heartbeats must be above 0");
        job = std::make_shared<Job>(Heartbeats{time(interval), time(limit)});
    }

    std::shared_ptr<Job> job;
};

class PyGroup {
  public:
    PyGroup(int rank, int size, const nb::bytes& context, std::uint32_t epoch, const nb::bytes& secret,
            std::size_t segment, bool oversubscribed, int home, bool crowded, int sockets, std::size_t cache,
            bool heap, const PyJob* job, std::vector<int> job_ranks, std::string host,
            std::size_t rendezvous) {
        Group::Options options;
        options.host = std::move(host);
        options.rendezvous = rendezvous;
        if (size < 1 || rank < 0 || rank >= size) throw nb::value_error("rank must be in range(size)");
        options.identity.group = group_id(context);
        if (job != nullptr) options.job = job->job;
        if (!job_ranks.empty() && job_ranks.size() != static_cast<std::size_t>(size)) {
            throw nb::value_error("a number in the job for each rank");
        }
        options.job_ranks = std::move(job_ranks);
        options.identity.rank = rank;
        options.identity.size = size;
        options.identity.epoch = epoch;
        options.identity.secret.assign(secret.c_str(), secret.size());
        options.segment = segment;
        options.cache = cache;
        options.heap = heap;
        options.oversubscribed = oversubscribed;
        if (home < -1 || home >= CPU_SETSIZE) throw nb::value_error("no such core");
        options.home = home;
        options.crowded = crowded;
        if (sockets < 1 || sockets > most_sockets) throw nb::value_error("no such number of sockets");
        options.sockets = sockets;
        group_ = std::make_shared<Group>(std::move(options));
    }
    PyGroup(const PyGroup&) = delete;
    PyGroup& operator=(const PyGroup&) = delete;
    ~PyGroup() { close(); }

    void listen(const std::string& scheme, int fd) { group_->links().listen(scheme, UniqueFd(fd)); }
    void accept(const std::string& scheme) { group_->links().accept(scheme); }
    std::string listen_in_process(const std::string& scheme) {
        return group_->links().listen_in_process(scheme);
    }

    void route(int peer, const std::string& scheme, std::vector<std::string> addresses, std::string host) {
        group_->links().route(peer, scheme, std::move(addresses), std::move(host));
    }

    void use_port(int peer, const std::string& scheme, const std::string& port) {
        group_->links().use_port(peer, scheme, port);
    }

    void connect(const std::vector<int>& peers, double timeout) {
        const nb::gil_scoped_release nogil;
        group_->connect(peers, timeout, interrupted);
    }

    std::pair<int, std::uint64_t> run(const PyOperation& operation, nb::handle in, nb::handle out,
                                      double timeout, const std::shared_ptr<PyTransfer>& transfer) {
        std::byte* from = input(*operation.operation, in);
        std::byte* to = output(*operation.operation, out);
        announce(*group_, in);
        announce(*group_, out);
        Receipt receipt;
        const Item item{operation.operation, from, to, &receipt, transfer_of(transfer.get())};
        if (transfer) transfer->begin(*group_, {&item, 1}, timeout);
        run_all({&item, 1}, timeout, {&transfer, 1});
        return {receipt.source, receipt.count};
    }

    std::pair<int, std::uint64_t> exchange(const PyOperation& send, nb::handle in, const PyOperation& recv,
                                           nb::handle out, double timeout,
                                           const std::shared_ptr<PyTransfer>& transfer) {
        std::byte* from = input(*send.operation, in);
        std::byte* to = output(*recv.operation, out);
        announce(*group_, in);
        announce(*group_, out);
        Receipt receipt;
        Transfer* const copies = transfer_of(transfer.get());
        const std::array<Item, 2> items{Item{send.operation, from, nullptr, nullptr, copies},
                                        Item{recv.operation, nullptr, to, &receipt, copies}};
        if (transfer) transfer->begin(*group_, items, timeout);
        run_all(items, timeout, {&transfer, 1});
        return {receipt.source, receipt.count};
    }

    // Returns what each call received, see `run`.
    std::vector<std::pair<int, std::uint64_t>> run_together(const nb::sequence& calls, double timeout) {
        std::vector<Item> items;
        const std::size_t count = nb::len(calls);
        std::vector<Receipt> receipts(count);
        std::vector<std::shared_ptr<PyTransfer>> transfers;
        items.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            const nb::object call = calls[i];
            const auto& operation = nb::cast<const PyOperation&>(call[0]);
            const nb::object transfer = call[3];
            transfers.push_back(transfer.is_none() ? nullptr
                                                   : nb::cast<std::shared_ptr<PyTransfer>>(transfer));
            items.push_back({operation.operation, input(*operation.operation, call[1]),
                             output(*operation.operation, call[2]), &receipts[i],
                             transfer_of(transfers.back().get())});
            announce(*group_, call[1]);
            announce(*group_, call[2]);
        }
        // Operations of one call follow one another.
        for (std::size_t first = 0, next = 0; first < count; first = next) {
            while (next < count && transfers[next] == transfers[first]) ++next;
            if (transfers[first] == nullptr) continue;
            transfers[first]->begin(*group_, std::span(items).subspan(first, next - first), timeout);
        }
        run_all(items, timeout, transfers);
        std::vector<std::pair<int, std::uint64_t>> found;
        found.reserve(count);
        for (const Receipt& receipt : receipts) found.emplace_back(receipt.source, receipt.count);
        return found;
    }

    Ticket start(const PyOperation& operation, nb::object in, nb::object out, double timeout,
                 std::shared_ptr<PyTransfer> transfer) {
        std::erase_if(kept_, [&](const Kept& kept) { return group_->done(*kept.work); });
        std::byte* from = input(*operation.operation, in);
        std::byte* to = output(*operation.operation, out);
        announce(*group_, in);
        announce(*group_, out);
        Transfer* const copies = transfer_of(transfer.get());
        const Item item{operation.operation, from, to, nullptr, copies};
        if (transfer) transfer->begin(*group_, {&item, 1}, timeout);
        const std::shared_ptr<Group> group = group_;
        std::shared_ptr<Work> work;
        {
            const nb::gil_scoped_release nogil;  // this thread may run the operation itself
            work = group->start(operation.operation, from, to, timeout, false, copies);
        }
        kept_.push_back({work, std::move(in), std::move(out), std::move(transfer)});
        return {group, std::move(work)};
    }

    GeneralizedTicket start_generalized(const PyOperation& agreement, double timeout,
                                        const std::string& engine) {
        return {{group_, group_->start_generalized(agreement.operation, nothing_.data(), nothing_.data() + 1,
                                                   timeout, engine)}};
    }

    nb::object empty(std::size_t bytes) {
        using Memory = std::shared_ptr<std::byte>;
        auto memory = std::make_unique<Memory>(group_->links().allocate(bytes));
        if (*memory == nullptr) return nb::none();
        std::byte* const data = memory->get();
        const nb::capsule capsule(memory.get(),
                                  [](void* pointer) noexcept { delete static_cast<Memory*>(pointer); });
        memory.release();  // the capsule owns it now
        return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, {bytes}, capsule));
    }

    std::optional<std::string> link_kind(int peer) {
        if (inherited() || !group_) return std::nullopt;
        const char* scheme = group_->links().scheme(peer);
        return scheme == nullptr ? std::nullopt : std::optional<std::string>(scheme);
    }

    // See Group.records in the stub.
    nb::list records() {
        nb::list found;
        if (inherited() || !group_) return found;
        const std::vector<Record> records = group_->records();
        const ticks::Scale scale = ticks::scale();
        const auto time = [&](std::uint64_t at) {
            return at == 0 ? nb::none() : nb::object(nb::float_(scale.at(at)));
        };
        for (const Record& record : records) {
            const Call& call = record.call;
            nb::dict entry;
            entry["number"] = record.number;
            entry["sequence"] = call.sequence;
            entry["collective"] = call.collective;
            entry["dtype"] = call.dtype;
            entry["op"] = call.op;
            entry["count"] = call.count;
            entry["root"] = call.root;
            entry["algorithm"] = call.algorithm;
            entry["epoch"] = call.epoch;
            entry["message"] = call.is_message();
            entry["sends"] = record.sends;
            entry["peer"] = record.peer;
            entry["state"] = static_cast<int>(record.state);
            entry["engine"] = record.engine;
            entry["queued"] = time(record.queued);
            entry["begun"] = time(record.begun);
            entry["first"] = time(record.first);
            entry["ended"] = time(record.ended);
            entry["waited"] = static_cast<double>(record.waited) * scale.per_tick;
            entry["sent"] = record.sent;
            entry["received"] = record.received;
            entry["error"] = record.error;
            found.append(entry);
        }
        return found;
    }

    nb::dict memory() {
        nb::dict found;
        if (inherited() || !group_) return found;
        const SharedMemoryUse use = group_->links().shared_memory();
        found["arena_mapped"] = use.mapped;
        found["arena_touched"] = use.touched;
        found["staging"] = use.staging;
        found["heap"] = use.heap;
        found["inboxes"] = group_->links().inbox_bytes();
        found["records"] = group_->recorder().bytes();
        return found;
    }

    nb::dict link_counts(int peer) {
        nb::dict found;
        if (inherited() || !group_) return found;
        if (peer < 0 || peer >= group_->size()) throw nb::value_error("no such rank");
        for (const LinkCount& count : group_->links().counts(peer)) found[count.name] = count.value;
        return found;
    }

    std::string link_path(int peer) {
        if (inherited() || !group_) return {};
        if (peer < 0 || peer >= group_->size()) throw nb::value_error("no such rank");
        return group_->links().path(peer);
    }

    std::uint64_t bytes_sent() { return group_->links().bytes_sent(); }

    std::vector<std::pair<std::string, std::optional<std::string>>> engines(const PyOperation& operation) {
        std::vector<EngineChoice> choices;
        {
            const nb::gil_scoped_release nogil;
            choices = group_->engines(*operation.operation);
        }
        std::vector<std::pair<std::string, std::optional<std::string>>> found;
        for (const EngineChoice& choice : choices) {
            found.emplace_back(choice.engine, choice.refuses == nullptr
                                                  ? std::nullopt
                                                  : std::optional<std::string>(choice.refuses));
        }
        return found;
    }

    void confirm(double grace) {
        if (inherited() || !group_) return;
        const nb::gil_scoped_release nogil;
        group_->confirm(grace);
    }

    void abandon(const std::string& kind, const std::string& message) {
        if (inherited() || !group_) return;
        const nb::gil_scoped_release nogil;
        group_->abandon(Error(kind_named(kind), message));
    }

    nb::object broken() {
        if (inherited() || !group_) return nb::none();
        const std::optional<Error> error = group_->broken();
        return error ? to_python(*error) : nb::none();
    }

    const std::shared_ptr<Group>& shared() const { return group_; }

    // A forked child has none of the group's threads, and must not touch what the parent uses, so it does
    // nothing.
    bool inherited() const { return ::getpid() != owner_; }

    void close() {
        if (inherited()) {
            std::make_unique<std::shared_ptr<Group>>(std::move(group_)).release();
            return;
        }
        {
            const nb::gil_scoped_release nogil;
            group_->close();
        }
        kept_.clear();
        abandoned_.clear();
    }

  private:
    struct Kept {
        std::shared_ptr<Work> work;
        nb::object in;
        nb::object out;
        std::shared_ptr<PyTransfer> transfer;
    };

    void run_all(std::span<const Item> items, double timeout,
                 std::span<const std::shared_ptr<PyTransfer>> transfers) {
        try {
            const nb::gil_scoped_release nogil;
            group_->run_all(items, timeout, interrupted);
        } catch (...) {
            // If waiting was interrupted, operations may go on.
            std::ranges::copy_if(transfers, std::back_inserter(abandoned_),
                                 [](const auto& transfer) { return transfer != nullptr; });
            throw;
        }
    }
    static Transfer* transfer_of(PyTransfer* transfer) {
        return transfer == nullptr ? nullptr : &transfer->transfer();
    }

    pid_t owner_ = ::getpid();
    std::array<std::byte, 2> nothing_{};  // memory of the barrier by which ranks agree on a call
    std::shared_ptr<Group> group_;
    std::vector<Kept> kept_;                              // arrays that operations still use
    std::vector<std::shared_ptr<PyTransfer>> abandoned_;  // those of calls that have failed
};

nb::list ports_of(const std::string& transport) {
    nb::list ports;
    for (const NetworkPort& port : network_ports(transport)) {
        nb::dict one;
        one["device"] = port.device;
        one["port"] = port.port;
        one["layer"] = port.layer;
        one["state"] = port.state;
        one["address"] = port.address;
        one["address_kind"] = port.address_kind;
        one["address_index"] = port.address_index;
        one["mtu"] = port.mtu;
        one["numa_node"] = port.numa_node;
        one["near"] = port.is_near;
        one["problem"] = port.problem;
        one["left_out"] = port.left_out;
        ports.append(one);
    }
    return ports;
}

}  // namespace

std::shared_ptr<Group> group_of(nb::handle group) { return nb::cast<const PyGroup&>(group).shared(); }

void add_groups(nb::module_& module) {
    module.def("why_no_room", &why_no_room, "transport"_a, "ranks"_a, "segment"_a = 0);
    module.def("network_ports", &ports_of, "transport"_a);
    module.def("transports", &registered_transports);
    module.def("refused_transports", &take_refused_transports);

    nb::class_<Ticket>(module, "Ticket")
        .def("done", &Ticket::done)
        .def_prop_ro("receipt", &Ticket::receipt)
        .def("wait", &Ticket::wait, "timeout"_a.none());

    nb::class_<GeneralizedTicket, Ticket>(module, "GeneralizedTicket")
        .def("wait_until_begun", &GeneralizedTicket::wait_until_begun)
        .def("complete", &GeneralizedTicket::complete)
        .def("fail", &GeneralizedTicket::fail, "kind"_a, "message"_a, "ranks"_a);

    const auto seconds = [](std::chrono::nanoseconds time) {
        return std::chrono::duration<double>(time).count();
    };
    const Heartbeats heartbeats;
    const std::pair usual(seconds(heartbeats.interval), seconds(heartbeats.limit));
    module.attr("HEARTBEATS") = nb::cast(usual);
    nb::class_<PyJob>(module, "Job")
        .def(nb::init<double, double>(), "interval"_a = usual.first, "limit"_a = usual.second)
        .def(
            "expect", [](PyJob& self, const nb::bytes& context) { self.job->expect(group_id(context)); },
            "context"_a)
        .def(
            "forget", [](PyJob& self, const nb::bytes& context) { self.job->forget(group_id(context)); },
            "context"_a);

    nb::class_<PyGroup>(module, "Group")
        .def(nb::init<int, int, const nb::bytes&, std::uint32_t, const nb::bytes&, std::size_t, bool, int,
                      bool, int, std::size_t, bool, const PyJob*, std::vector<int>, std::string,
                      std::size_t>(),
             "rank"_a, "size"_a, "context"_a, "epoch"_a, "secret"_a, "segment"_a = 0,
             "oversubscribed"_a = false, "home"_a = -1, "crowded"_a = false, "sockets"_a = 1, "cache"_a = 0,
             "heap"_a = true, "job"_a.none() = nb::none(), "job_ranks"_a = nb::make_tuple(), "host"_a = "",
             "rendezvous"_a = 0)
        .def("listen", &PyGroup::listen, "scheme"_a, "fd"_a)
        .def("accept", &PyGroup::accept, "scheme"_a)
        .def("listen_in_process", &PyGroup::listen_in_process, "scheme"_a)
        .def("use_port", &PyGroup::use_port, "peer"_a, "scheme"_a, "port"_a)
        .def("route", &PyGroup::route, "peer"_a, "scheme"_a, "addresses"_a, "host"_a)
        .def("connect", &PyGroup::connect, "peers"_a, "timeout"_a)
        .def("run", &PyGroup::run, "operation"_a, "inp"_a.none(), "out"_a.none(), "timeout"_a,
             "transfer"_a.none() = nb::none())
        .def("exchange", &PyGroup::exchange, "send"_a, "inp"_a.none(), "recv"_a, "out"_a.none(), "timeout"_a,
             "transfer"_a.none() = nb::none())
        .def("run_together", &PyGroup::run_together, "calls"_a, "timeout"_a)
        .def("start", &PyGroup::start, "operation"_a, "inp"_a.none(), "out"_a.none(), "timeout"_a,
             "transfer"_a.none() = nb::none())
        .def("start_generalized", &PyGroup::start_generalized, "agreement"_a, "timeout"_a, "engine"_a)
        .def("empty", &PyGroup::empty, "nbytes"_a)
        .def("link_kind", &PyGroup::link_kind, "peer"_a)
        .def("bytes_sent", &PyGroup::bytes_sent)
        .def("link_counts", &PyGroup::link_counts, "peer"_a)
        .def("link_path", &PyGroup::link_path, "peer"_a)
        .def("records", &PyGroup::records)
        .def("memory", &PyGroup::memory)
        .def("engines", &PyGroup::engines, "operation"_a)
        .def("confirm", &PyGroup::confirm, "grace"_a)
        .def("abandon", &PyGroup::abandon, "kind"_a, "message"_a)
        .def_prop_ro("broken", &PyGroup::broken)
        .def("close", &PyGroup::close);
}

}  // namespace collectives
