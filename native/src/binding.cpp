// The Python face of the engine. Only the files binding*.cpp know Python.
//
// Invariant: the GIL is released around everything that can wait, and Python objects are touched only with
// it: arrays of asynchronous operations are kept, and let go, by the Python object that started them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sched.h>

#include <algorithm>
#include <limits>

#include "binding_common.hpp"
#include "cpu.hpp"
#include "frame.hpp"
#include "reduce.hpp"
#include "sha256.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

// --- errors

const char* class_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::peer_lost:
            return "PeerLost";
        case ErrorKind::op_timeout:
            return "OpTimeout";
        case ErrorKind::desync:
            return "DesyncError";
        case ErrorKind::stale_epoch:
            return "StaleEpoch";
        case ErrorKind::aborted:
            return "Aborted";
        case ErrorKind::config_mismatch:
            return "ConfigMismatch";
        case ErrorKind::auth:
            return "AuthError";
        case ErrorKind::transport_unavailable:
            return "TransportUnavailable";
        case ErrorKind::invalid:
        case ErrorKind::interrupted:
            break;
    }
    return nullptr;
}

}  // namespace

nb::object to_python(const Error& error) {
    const char* name = class_name(error.kind());
    if (name == nullptr) return nb::steal(PyObject_CallFunction(PyExc_ValueError, "s", error.what()));
    const nb::object type = nb::module_::import_("native.errors").attr(name);
    if (error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::op_timeout) {
        return type(error.what(), nb::cast(error.ranks()));
    }
    return type(error.what());
}

void set_python_error() {
    try {
        throw;
    } catch (const Error& error) {
        // An interrupted wait has left the signal handler's exception in place.
        if (error.kind() == ErrorKind::interrupted && PyErr_Occurred() != nullptr) return;
        try {
            const nb::object value = to_python(error);
            PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
        } catch (nb::python_error& raised) {
            // The error's __init__ is Python code, in which a pending signal's handler may raise: that wins.
            raised.restore();
        }
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
}

const Interrupted interrupted = [] {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
};

// --- arrays

PyTypeObject* array_type() {
    static PyObject* type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
    return reinterpret_cast<PyTypeObject*>(type);
}

namespace {

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const Error&) {
        set_python_error();
    }
}

// The memory of a contiguous NumPy array of `bytes / unit` elements, or null for None.
std::byte* memory(nb::handle object, std::uint64_t bytes, std::size_t unit, const char* name) {
    if (object.is_none()) {
        if (bytes == 0) return nullptr;
        throw nb::value_error((std::string(name) + " is missing").c_str());
    }
    if (PyObject_TypeCheck(object.ptr(), array_type()) == 0) {
        throw nb::type_error((std::string(name) + " is not a NumPy array").c_str());
    }
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS) || elements_of(array) * unit != bytes) {
        throw nb::value_error((std::string(name) + " has another size than the operation, or gaps").c_str());
    }
    return static_cast<std::byte*>(PyArray_DATA(array));
}

std::byte* input(const Operation& operation, nb::handle array) {
    return memory(array, array.is_none() ? 0 : operation.in_bytes(), operation.unit(), "the input");
}

std::byte* output(const Operation& operation, nb::handle array) {
    return memory(array, array.is_none() ? 0 : operation.out_bytes(), operation.unit(), "the output");
}

// --- programs and operations

Chunk to_chunk(nb::handle triple) {
    const auto [buffer, first, count] = nb::cast<std::array<std::int64_t, 3>>(triple);
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (buffer < 0 || first < 0 || count < 0 || buffer > most || first > most || count > most) {
        throw nb::value_error("a chunk lies outside its buffer");
    }
    return {static_cast<int>(buffer), static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
}

Step to_step(nb::handle record) {
    const nb::sequence fields = nb::cast<nb::sequence>(record);
    Step step;
    const int kind = nb::cast<int>(fields[0]);
    if (kind < 0 || kind > static_cast<int>(StepKind::copy))
        throw nb::value_error("a step is of an unknown kind");
    step.kind = static_cast<StepKind>(kind);
    for (const nb::handle peer : fields[1]) step.peers.push_back(nb::cast<int>(peer));
    step.dst = to_chunk(fields[2]);
    for (const nb::handle source : fields[3]) {
        Operand operand;
        if (nb::isinstance<nb::int_>(source)) {
            operand.peer = nb::cast<int>(source);
            if (operand.peer < 0) throw nb::value_error("a step names a rank below 0");
        } else {
            operand.chunk = to_chunk(source);
        }
        step.operands.push_back(operand);
    }
    step.final = nb::cast<bool>(fields[4]);
    step.shared = nb::cast<bool>(fields[5]);
    for (const nb::handle edge : fields[6]) {
        const auto [other, buffer, there, here] = nb::cast<std::array<std::uint32_t, 4>>(edge);
        step.dependencies.push_back({other, static_cast<int>(buffer), there, here});
    }
    return step;
}

std::shared_ptr<const Program> make_program(int rank, int size, std::pair<std::uint32_t, std::uint32_t> grid,
                                            const nb::sequence& scratch, const nb::sequence& steps,
                                            bool pooled, nb::handle flat) {
    std::vector<std::vector<Block>> slots;
    for (const nb::handle slot : scratch) {
        std::vector<Block>& blocks = slots.emplace_back();
        for (const nb::handle block : slot) {
            const auto [buffer, index] = nb::cast<std::pair<int, std::uint32_t>>(block);
            blocks.push_back({buffer, index});
        }
    }
    std::vector<Step> records;
    for (const nb::handle step : steps) records.push_back(to_step(step));
    std::optional<Exchange> exchange;
    if (!flat.is_none()) exchange = Exchange{to_chunk(flat[0]), to_chunk(flat[1])};
    return std::make_shared<const Program>(rank, size, grid.first, grid.second, std::move(slots),
                                           std::move(records), pooled, exchange);
}

Bounds to_bounds(nb::handle value, std::uint32_t blocks) {
    if (nb::isinstance<nb::int_>(value)) return Bounds(nb::cast<std::uint64_t>(value), blocks);
    std::vector<std::uint64_t> offsets;
    for (const nb::handle offset : value) offsets.push_back(nb::cast<std::uint64_t>(nb::int_(offset)));
    if (offsets.size() != std::size_t{blocks} + 1 || !std::is_sorted(offsets.begin(), offsets.end())) {
        throw nb::value_error("bounds must ascend, one more than there are blocks");
    }
    return Bounds(std::move(offsets));
}

struct PyProgram {
    std::shared_ptr<const Program> program;
};

PyOperation make_operation(const PyProgram& program, unsigned dtype, unsigned op, nb::handle in_bounds,
                           nb::handle out_bounds, const std::array<std::uint64_t, 6>& identity) {
    if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
    if (!supports(static_cast<DType>(dtype), static_cast<Op>(op))) {
        throw nb::type_error("this op has no meaning for this dtype");
    }
    const Program& plan = *program.program;
    Call call;
    call.collective = static_cast<std::uint8_t>(identity[0]);
    call.op = static_cast<std::uint8_t>(identity[1]);
    call.dtype = static_cast<std::uint8_t>(identity[2]);
    call.count = identity[3];
    call.root = static_cast<std::uint32_t>(identity[4]);
    call.algorithm = static_cast<std::uint32_t>(identity[5]);
    return {std::make_shared<const Operation>(program.program, static_cast<DType>(dtype), static_cast<Op>(op),
                                              to_bounds(in_bounds, plan.in_blocks),
                                              to_bounds(out_bounds, plan.out_blocks), call)};
}

// --- groups

struct Ticket {
    std::shared_ptr<Group> group;
    std::shared_ptr<Job> job;

    bool done() const { return group->done(*job); }

    void wait(std::optional<double> timeout) const {
        const nb::gil_scoped_release nogil;
        if (!group->wait(*job, timeout.value_or(std::numeric_limits<double>::infinity()), interrupted)) {
            throw Error(ErrorKind::op_timeout, "the operation is still running");
        }
    }
};

class PyGroup {
  public:
    PyGroup(int rank, int size, const nb::bytes& context, std::uint32_t epoch, const nb::bytes& secret,
            std::size_t segment, bool oversubscribed, int home, bool crowded, int sockets) {
        Group::Options options;
        if (size < 1 || rank < 0 || rank >= size) throw nb::value_error("rank must be in range(size)");
        if (context.size() != options.identity.group.size())
            throw nb::value_error("context must have 16 bytes");
        std::copy_n(reinterpret_cast<const std::byte*>(context.c_str()), context.size(),
                    options.identity.group.begin());
        options.identity.rank = rank;
        options.identity.size = size;
        options.identity.epoch = epoch;
        options.identity.secret.assign(secret.c_str(), secret.size());
        options.segment = segment;
        options.oversubscribed = oversubscribed;
        if (home < -1 || home >= CPU_SETSIZE) throw nb::value_error("no such core");
        options.home = home;
        options.crowded = crowded;
        if (sockets < 1 || sockets > most_lanes) throw nb::value_error("no such number of sockets");
        options.identity.lanes = sockets;
        group_ = std::make_shared<Group>(std::move(options));
    }
    PyGroup(const PyGroup&) = delete;
    PyGroup& operator=(const PyGroup&) = delete;
    ~PyGroup() { close(); }

    void listen(const std::string& scheme, int fd) {
        group_->links().listen(to_scheme(scheme), UniqueFd(fd));
    }
    std::string listen_inproc() { return group_->links().listen_inproc(); }

    void route(int peer, const std::string& scheme, std::vector<std::string> addresses, std::string host) {
        group_->links().route(peer, to_scheme(scheme), std::move(addresses), std::move(host));
    }

    void connect(const std::vector<int>& peers, double timeout) {
        const nb::gil_scoped_release nogil;
        group_->connect(peers, timeout, interrupted);
    }

    void run(const PyOperation& operation, nb::handle in, nb::handle out, double timeout) {
        std::byte* from = input(*operation.operation, in);
        std::byte* to = output(*operation.operation, out);
        const nb::gil_scoped_release nogil;
        group_->run(operation.operation, from, to, timeout, interrupted);
    }

    Ticket start(const PyOperation& operation, nb::object in, nb::object out, double timeout) {
        std::erase_if(kept_, [&](const Kept& kept) { return group_->done(*kept.job); });
        std::byte* from = input(*operation.operation, in);
        std::byte* to = output(*operation.operation, out);
        Ticket ticket{group_, group_->start(operation.operation, from, to, timeout)};
        kept_.push_back({ticket.job, std::move(in), std::move(out)});
        return ticket;
    }

    nb::object empty(std::size_t bytes) {
        const std::shared_ptr<Arena> arena = group_->links().arena();
        std::byte* data = arena ? arena->allocate(bytes) : nullptr;
        if (data == nullptr) return nb::none();
        struct Owner {
            std::shared_ptr<Arena> arena;
            std::byte* data;
            std::size_t bytes;
        };
        auto owner = std::make_unique<Owner>(Owner{arena, data, bytes});
        const nb::capsule capsule(owner.get(), [](void* pointer) noexcept {
            const std::unique_ptr<Owner> held(static_cast<Owner*>(pointer));
            held->arena->release(held->data, held->bytes);
        });
        owner.release();  // the capsule's now
        return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, {bytes}, capsule));
    }

    std::optional<std::string> link_kind(int peer) {
        const char* scheme = group_->links().scheme(peer);
        return scheme == nullptr ? std::nullopt : std::optional<std::string>(scheme);
    }

    std::uint64_t bytes_sent() { return group_->links().bytes_sent(); }

    nb::object broken() {
        const std::optional<Error> error = group_->broken();
        return error ? to_python(*error) : nb::none();
    }

    const std::shared_ptr<Group>& shared() const { return group_; }

    // A forked child has none of our threads and must not touch what the parent uses: it lets everything be.
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
    }

  private:
    struct Kept {
        std::shared_ptr<Job> job;
        nb::object in;
        nb::object out;
    };

    static Scheme to_scheme(const std::string& name) {
        if (name == "shm") return Scheme::shm;
        if (name == "tcp") return Scheme::tcp;
        if (name == "inproc") return Scheme::inproc;
        throw nb::value_error(("no links of scheme " + name).c_str());
    }

    pid_t owner_ = ::getpid();
    std::shared_ptr<Group> group_;
    std::vector<Kept> kept_;  // arrays that operations still use
};

// --- module functions

void reduce_arrays(nb::handle dst, const nb::sequence& sources, unsigned dtype, unsigned op, double scale) {
    if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
    const auto type = static_cast<DType>(dtype);
    const ReduceFn kernel = reduce_kernel(type, static_cast<Op>(op));
    if (kernel == nullptr) throw nb::type_error("this op has no meaning for this dtype");
    const std::uint64_t count = nb::cast<std::uint64_t>(dst.attr("size"));
    const std::size_t unit = size_of(type);
    std::vector<const std::byte*> from;
    const auto check = [&](nb::handle array) {
        if (nb::cast<std::size_t>(array.attr("itemsize")) != unit) {
            throw nb::type_error("an array's elements have another size than the dtype");
        }
    };
    check(dst);
    for (const nb::handle source : sources) {
        check(source);
        from.push_back(memory(source, count * unit, unit, "a source"));
    }
    if (from.empty()) throw nb::value_error("there is nothing to reduce");
    std::byte* to = memory(dst, count * unit, unit, "the output");
    const nb::gil_scoped_release nogil;
    kernel(to, from.data(), from.size(), static_cast<std::size_t>(count), scale);
}

nb::bytes digest_bytes(const std::array<std::byte, 32>& digest) {
    return nb::bytes(digest.data(), digest.size());
}

std::span<const std::byte> span_of(const nb::bytes& data) {
    return {reinterpret_cast<const std::byte*>(data.c_str()), data.size()};
}

template <typename Names>
nb::dict numbered(const Names& names) {
    nb::dict codes;
    int code = 0;
    for (const auto& name : names) codes[nb::str(std::string(name).c_str())] = code++;
    return codes;
}

}  // namespace

std::shared_ptr<Group> group_of(nb::handle group) { return nb::cast<const PyGroup&>(group).shared(); }

}  // namespace collectives

NB_MODULE(_engine, module) {
    using namespace collectives;
    nb::register_exception_translator(translate);
    // Communicators that a program leaves open live as long as it does: nothing to warn of at its end.
    nb::set_leak_warnings(false);

    std::vector<std::string> kinds;
    for (int i = 0; i < n_collectives; ++i) kinds.emplace_back(collective_name(static_cast<Collective>(i)));
    kinds.back() = "send";
    module.attr("DTYPES") = numbered(dtype_names);
    module.attr("OPS") = numbered(op_names);
    module.attr("COLLECTIVES") = numbered(kinds);
    module.attr("WIRE_VERSION") = wire_version;

    module.def(
        "supports",
        [](unsigned dtype, unsigned op) {
            return is_dtype(dtype) && is_op(op) && supports(static_cast<DType>(dtype), static_cast<Op>(op));
        },
        "dtype"_a, "op"_a);
    module.def("reduce", &reduce_arrays, "dst"_a, "sources"_a, "dtype"_a, "op"_a, "scale"_a = 1.0);
    module.def("cpu_features", &cpu_features);
    module.def("sha256", [](const nb::bytes& data) { return digest_bytes(sha256(span_of(data))); }, "data"_a);
    module.def(
        "hmac_sha256",
        [](const nb::bytes& key, const nb::bytes& data) {
            return digest_bytes(hmac_sha256(span_of(key), span_of(data)));
        },
        "key"_a, "data"_a);

    nb::class_<PyProgram>(module, "Program")
        .def(
            "__init__",
            [](PyProgram* self, int rank, int size, std::pair<std::uint32_t, std::uint32_t> grid,
               const nb::sequence& scratch, const nb::sequence& steps, bool pooled, const nb::object& flat) {
                new (self) PyProgram{make_program(rank, size, grid, scratch, steps, pooled, flat)};
            },
            "rank"_a, "size"_a, "grid"_a, "scratch"_a, "steps"_a, "pooled"_a = false, "flat"_a = nb::none())
        .def_prop_ro("peers", [](const PyProgram& self) { return self.program->peers; });

    nb::class_<PyOperation>(module, "Operation")
        .def(
            "__init__",
            [](PyOperation* self, const PyProgram& program, unsigned dtype, unsigned op, nb::handle in_bounds,
               nb::handle out_bounds, const std::array<std::uint64_t, 6>& identity) {
                new (self) PyOperation(make_operation(program, dtype, op, in_bounds, out_bounds, identity));
            },
            "program"_a, "dtype"_a, "op"_a, "in_bounds"_a, "out_bounds"_a, "identity"_a)
        .def_prop_ro("in_bytes", [](const PyOperation& self) { return self.operation->in_bytes(); })
        .def_prop_ro("out_bytes", [](const PyOperation& self) { return self.operation->out_bytes(); });

    nb::class_<Ticket>(module, "Ticket")
        .def("done", &Ticket::done)
        .def("wait", &Ticket::wait, "timeout"_a.none());

    nb::class_<PyGroup>(module, "Group")
        .def(nb::init<int, int, const nb::bytes&, std::uint32_t, const nb::bytes&, std::size_t, bool, int,
                      bool, int>(),
             "rank"_a, "size"_a, "context"_a, "epoch"_a, "secret"_a, "segment"_a = 0,
             "oversubscribed"_a = false, "home"_a = -1, "crowded"_a = false, "sockets"_a = 1)
        .def("listen", &PyGroup::listen, "scheme"_a, "fd"_a)
        .def("listen_inproc", &PyGroup::listen_inproc)
        .def("route", &PyGroup::route, "peer"_a, "scheme"_a, "addresses"_a, "host"_a)
        .def("connect", &PyGroup::connect, "peers"_a, "timeout"_a)
        .def("run", &PyGroup::run, "operation"_a, "inp"_a.none(), "out"_a.none(), "timeout"_a)
        .def("start", &PyGroup::start, "operation"_a, "inp"_a.none(), "out"_a.none(), "timeout"_a)
        .def("empty", &PyGroup::empty, "nbytes"_a)
        .def("link_kind", &PyGroup::link_kind, "peer"_a)
        .def("bytes_sent", &PyGroup::bytes_sent)
        .def_prop_ro("broken", &PyGroup::broken)
        .def("close", &PyGroup::close);

    add_repeaters(module);
    add_plans(module);
}
