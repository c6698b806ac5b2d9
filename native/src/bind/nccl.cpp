// The NCCL of this process, its communicators, and operations that it runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "bind/stream_ticket.hpp"
#include "nccl/collective.hpp"
#include "nccl/lease.hpp"
#include "nccl/library.hpp"
#include "nccl/scheduled.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

cuda::Kind kind_named(std::string_view name) {
    const std::optional<cuda::Kind> found = cuda::kind_of(name);
    if (!found) throw nb::value_error("NCCL does not run this collective");
    return *found;
}

nb::bytes unique_id(const nccl::Library& library) {
    nccl::UniqueId id{};
    {
        const nb::gil_scoped_release nogil;  // the first call reads the machine's topology
        library.check(library.api().get_unique_id(&id), "ncclGetUniqueId");
    }
    return nb::bytes(id.internal, sizeof(id.internal));
}

std::string why_nccl_does_not_reduce(const std::string& dtype, unsigned op, int version, int capability) {
    if (!is_op(op)) throw nb::value_error("an unknown op");
    nccl::Elements elements;
    return nccl::why_not_reduced(dtype, static_cast<Op>(op), version, capability, elements);
}

// A call of a user, which may be issued several times.
struct NcclCall {
    std::vector<std::shared_ptr<const Operation>> operations;
    nccl::Arguments arguments;
    std::optional<nccl::ScheduledArguments> scheduled;  // in place of `arguments`
};

struct NcclRounds {
    NcclRounds(const PyOperation& operation_, const std::vector<std::vector<std::uint32_t>>& of_steps)
        : operation(operation_.operation),
          rounds(std::make_shared<const nccl::Rounds>(operation, of_steps)) {}

    std::shared_ptr<const Operation> operation;
    std::shared_ptr<const nccl::Rounds> rounds;
};

// NCCL's communicator as one group uses it.
class NcclMember {
  public:
    NcclMember(nb::handle group, const nccl::Library& library, const nb::bytes& id, int device,
               int capability, int least, int most, double timeout)
        : group_(group_of(group)) {
        nccl::UniqueId unique{};
        if (id.size() != sizeof(unique.internal)) throw nb::value_error("an id of NCCL has 128 bytes");
        std::copy_n(id.c_str(), sizeof(unique.internal), unique.internal);
        const nccl::Communicator::Member member{group_->rank(), group_->size(), device, capability};
        const nb::gil_scoped_release nogil;
        group_->join(
            "NCCL's communicator", " (NCCL_SOCKET_IFNAME)",
            [&](const std::function<void()>& patience) {
                nccl_ = std::make_shared<nccl::Communicator>(
                    library, unique, member, nccl::Communicator::Blocks{least, most}, patience);
                return std::make_shared<nccl::Lease>(nccl_);
            },
            timeout, interrupted);
    }
    // Uses the communicator of another group of the same ranks.
    NcclMember(nb::handle group, const NcclMember& other) : group_(group_of(group)), nccl_(other.nccl_) {
        const nb::gil_scoped_release nogil;
        group_->join(
            "", "", [&](const std::function<void()>&) { return std::make_shared<nccl::Lease>(nccl_); },
            std::numeric_limits<double>::infinity(), interrupted);
    }

    using PyPiece = std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t, std::size_t,
                               std::string, unsigned, int>;
    NcclCall prepare(const std::vector<PyOperation>& operations, const std::vector<PyPiece>& pieces,
                     std::uint64_t stream, std::optional<std::uint64_t> producer) const {
        NcclCall call;
        for (const PyOperation& one : operations) call.operations.push_back(one.operation);
        for (const auto& [kind, in, out, count, unit, dtype, op, peer] : pieces) {
            nccl::Piece piece{kind_named(kind), in, out, count, unit, {}, peer};
            if (cuda::reduces(piece.kind)) {
                if (!is_op(op)) throw nb::value_error("an unknown op");
                const std::string why = nccl::why_not_reduced(dtype, static_cast<Op>(op), nccl_->version(),
                                                              nccl_->member().capability, piece.elements);
                if (!why.empty()) throw nb::type_error(why.c_str());
            }
            call.arguments.pieces.push_back(piece);
        }
        call.arguments.stream = stream_of(stream);
        if (producer) call.arguments.producer = stream_of(*producer);
        return call;
    }

    NcclCall schedule(const NcclRounds& rounds, std::uint64_t in, std::uint64_t out,
                      const std::string& compiler, std::uint64_t stream,
                      std::optional<std::uint64_t> producer) const {
        NcclCall call;
        call.operations.push_back(rounds.operation);
        nccl::ScheduledArguments& a = call.scheduled.emplace();
        a.rounds = rounds.rounds;
        a.in = in;
        a.out = out;
        a.compiler = compiler;
        a.stream = stream_of(stream);
        if (producer) a.producer = stream_of(*producer);
        return call;
    }

    // All in one stream, and written in one stream before.
    NcclCall together(const std::vector<NcclCall>& calls) const {
        NcclCall whole;
        nccl::Arguments& to = whole.arguments;
        for (const NcclCall& one : calls) {
            const nccl::Arguments& from = one.arguments;
            if (to.pieces.empty()) to.stream = from.stream;
            if (!to.producer) to.producer = from.producer;
            if (to.stream != from.stream || (from.producer && to.producer != from.producer)) {
                throw nb::value_error(
                    "messages that are issued together have to be in one stream, and their arrays written in "
                    "one");
            }
            to.pieces.insert(to.pieces.end(), from.pieces.begin(), from.pieces.end());
            whole.operations.insert(whole.operations.end(), one.operations.begin(), one.operations.end());
        }
        return whole;
    }

    StreamTicket issue(const NcclCall& call, double timeout) const {
        if (call.scheduled) {
            return issue_task(
                call.operations, [&] { return nccl::make_scheduled_task(nccl_, *call.scheduled); }, timeout);
        }
        return issue_task(call.operations, [&] { return nccl::make_task(nccl_, call.arguments); }, timeout);
    }

    StreamTicket connect(const PyOperation& operation, const std::vector<std::string>& kinds,
                         double timeout) const {
        std::vector<cuda::Kind> wanted;
        for (const std::string& kind : kinds) wanted.push_back(kind_named(kind));
        return issue_task(
            {operation.operation}, [&] { return nccl::make_connecting_task(nccl_, wanted); }, timeout);
    }

    StreamTicket mark(std::uint64_t stream) const {
        return issue_task(
            {}, [&] { return nccl::make_marker(nccl_, stream_of(stream)); },
            std::numeric_limits<double>::infinity());
    }

    std::uint64_t memory() const { return nccl_->memory(); }
    bool is_over() const { return nccl_->is_over(); }
    // The same for those that share one.
    std::uintptr_t communicator() const { return reinterpret_cast<std::uintptr_t>(nccl_.get()); }

  private:
    template <typename Make>
    StreamTicket issue_task(const std::vector<std::shared_ptr<const Operation>>& operations, const Make& make,
                            double timeout) const {
        std::vector<const Operation*> calls;
        for (const auto& operation : operations) calls.push_back(operation.get());
        return collectives::issue_task(group_, nccl_->name(), calls, make, timeout);
    }

    std::shared_ptr<Group> group_;
    std::shared_ptr<nccl::Communicator> nccl_;
};

}  // namespace

void add_nccl(nb::module_& module) {
    nb::class_<nccl::Library>(module, "NcclLibrary")
        .def_prop_ro("path", &nccl::Library::path)
        .def_prop_ro("version", &nccl::Library::version)
        .def_prop_ro("features", &nccl::Library::features)
        .def("unique_id", &unique_id);
    module.def("loaded_nccl", &nccl::loaded_file);
    module.def(
        "load_nccl",
        [](const std::string& path) {
            const nb::gil_scoped_release nogil;  // it is a large file
            return &nccl::Library::load(path);
        },
        "path"_a, nb::rv_policy::reference);
    module.def("why_nccl_does_not_reduce", &why_nccl_does_not_reduce, "dtype"_a, "op"_a, "version"_a,
               "capability"_a);

    nb::class_<StreamTicket>(module, "StreamTicket")
        .def("done", &StreamTicket::done)
        .def("wait", &StreamTicket::wait, "timeout"_a.none());
    nb::class_<NcclCall>(module, "NcclCall");
    nb::class_<NcclRounds>(module, "NcclRounds")
        .def(nb::init<const PyOperation&, const std::vector<std::vector<std::uint32_t>>&>(), "operation"_a,
             "rounds"_a)
        .def_prop_ro("reduces", [](const NcclRounds& self) { return self.rounds->reduces(); })
        .def_prop_ro("temporary", [](const NcclRounds& self) { return self.rounds->temporary(); });
    nb::class_<NcclMember>(module, "NcclMember", nb::is_weak_referenceable())
        .def(nb::init<nb::handle, const nccl::Library&, const nb::bytes&, int, int, int, int, double>(),
             "group"_a, "library"_a, "id"_a, "device"_a, "capability"_a, "least"_a, "most"_a, "timeout"_a)
        .def(nb::init<nb::handle, const NcclMember&>(), "group"_a, "other"_a)
        .def("prepare", &NcclMember::prepare, "operations"_a, "pieces"_a, "stream"_a, "producer"_a.none())
        .def("schedule", &NcclMember::schedule, "rounds"_a, "inp"_a, "out"_a, "compiler"_a, "stream"_a,
             "producer"_a.none())
        .def("together", &NcclMember::together, "calls"_a)
        .def("issue", &NcclMember::issue, "call"_a, "timeout"_a)
        .def("connect", &NcclMember::connect, "operation"_a, "kinds"_a, "timeout"_a)
        .def("mark", &NcclMember::mark, "stream"_a)
        .def_prop_ro("memory", &NcclMember::memory)
        .def_prop_ro("is_over", &NcclMember::is_over)
        .def_prop_ro("communicator", &NcclMember::communicator);
}

}  // namespace collectives
