// The engine for ranks that share a device, memory of a device that other processes can open, and staging.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "bind/transfer.hpp"
#include "cuda/device.hpp"
#include "cuda/heap.hpp"
#include "cuda/staging.hpp"
#include "leader/collective.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

cuda::Kind collective_named(std::string_view name) {
    const std::optional<cuda::Kind> found = cuda::kind_of(name);
    if (!found || cuda::is_message(*found)) {
        throw nb::value_error("the leader form has no such collective");
    }
    return *found;
}

// A call of a user, which may be issued several times.
struct LeaderCall {
    std::shared_ptr<const Operation> operation;
    leader::Arguments arguments;
};

class LeaderMember {
  public:
    LeaderMember(nb::handle group, int device, const std::string& compiler) : group_(group_of(group)) {
        const leader::Communicator::Member member{group_->rank(), group_->size(), device};
        const nb::gil_scoped_release nogil;
        engine_ = std::make_shared<leader::Communicator>(member, compiler);
    }

    nb::bytes record() const { return nb::bytes(&engine_->record(), sizeof(leader::Record)); }

    std::string meet(const std::vector<nb::bytes>& records, double timeout) const {
        static_assert(std::is_trivially_copyable_v<leader::Record>);
        std::vector<leader::Record> everyone(records.size());
        for (std::size_t rank = 0; rank < records.size(); ++rank) {
            if (records[rank].size() != sizeof(leader::Record)) {
                throw nb::value_error("a record has another length");
            }
            std::memcpy(&everyone[rank], records[rank].c_str(), sizeof(leader::Record));
        }
        if (everyone.size() != static_cast<std::size_t>(group_->size())) {
            throw nb::value_error("one record for each rank");
        }
        std::string why_not;
        const nb::gil_scoped_release nogil;
        group_->join(
            "the group of ranks that share a device", "",
            [&](const std::function<void()>& patience) -> std::shared_ptr<StreamEngine> {
                std::optional<Error> given_up;
                try {
                    engine_->meet(everyone, [&] {
                        try {
                            patience();
                        } catch (const Error& error) {
                            given_up = error;
                            throw;
                        }
                    });
                } catch (const Error& error) {
                    if (given_up) throw;
                    why_not = error.what();
                }
                return nullptr;  // not before all ranks have met
            },
            timeout, interrupted);
        return why_not;
    }

    void use() const {
        const nb::gil_scoped_release nogil;
        group_->join(
            "", "", [&](const std::function<void()>&) { return engine_; },
            std::numeric_limits<double>::infinity(), interrupted);
    }

    std::size_t memory() const { return engine_->own_bytes(); }

    LeaderCall prepare(const PyOperation& operation, std::string_view kind, std::uint64_t in,
                       std::uint64_t out, std::uint64_t count, unsigned dtype, std::size_t unit, unsigned op,
                       int root, std::uint64_t stream, std::optional<std::uint64_t> producer) const {
        if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
        LeaderCall call{operation.operation, {}};
        leader::Arguments& a = call.arguments;
        a.kind = collective_named(kind);
        a.in = in;
        a.out = out;
        a.count = count;
        a.dtype = static_cast<DType>(dtype);
        a.unit = unit;
        a.op = static_cast<Op>(op);
        a.root = root;
        a.stream = stream_of(stream);
        if (producer) a.producer = stream_of(*producer);
        return call;
    }

    StreamTicket issue(const LeaderCall& call, double timeout) const {
        const Operation* const one = call.operation.get();
        return issue_task(
            group_, engine_->name(), std::span(&one, 1),
            [&] { return leader::make_task(engine_, call.arguments); }, timeout);
    }

    StreamTicket mark(std::uint64_t stream) const {
        return issue_task(
            group_, engine_->name(), {}, [&] { return leader::make_marker(engine_, stream_of(stream)); },
            std::numeric_limits<double>::infinity());
    }

    void compile(unsigned dtype, unsigned op) const {
        if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
        const nb::gil_scoped_release nogil;
        engine_->compile(static_cast<DType>(dtype), static_cast<Op>(op));
    }

  private:
    std::shared_ptr<Group> group_;
    std::shared_ptr<leader::Communicator> engine_;
};

// Memory of a device, for an array.
class CudaMemory {
  public:
    CudaMemory(std::size_t bytes, int device) {
        const nb::gil_scoped_release nogil;
        block_ = cuda::allocate(cuda::PrimaryContext::of(device), bytes, cuda::For::all_processes);
    }
    std::uint64_t address() const { return block_->address(); }

  private:
    std::shared_ptr<const cuda::Block> block_;
};

// A copy to the host that is under way.
struct StagedCopy {
    cuda::Signal signal;

    bool wait(double timeout) const {
        const nb::gil_scoped_release nogil;
        return wait_for_copies([&] { return signal.is_set(); }, timeout);
    }
};

// Host memory through which arrays of a device pass.
class CudaStaging {
  public:
    CudaStaging(nb::handle array, std::size_t bytes, int device)
        : array_(nb::borrow(array)),
          staging_(std::make_unique<cuda::Staging>(cuda::PrimaryContext::of(device),
                                                   memory(array, bytes, 1, "memory"), bytes)) {}
    CudaStaging(const CudaStaging&) = delete;
    CudaStaging& operator=(const CudaStaging&) = delete;
    ~CudaStaging() {
        bool is_over = false;
        {
            const nb::gil_scoped_release nogil;
            is_over = staging_->drain();
        }
        if (is_over) return;
        // Copies that a stream holds up may still write the memory: it is kept as long as the process.
        static_cast<void>(staging_.release());
        static_cast<void>(array_.release());
    }

    // (offset in the host memory, address on the device, bytes)
    using Copies = std::vector<std::tuple<std::size_t, std::uint64_t, std::size_t>>;

    void begin(std::uint64_t stream) { staging_->begin(stream_of(stream)); }
    StagedCopy fetch(const Copies& copies) { return {staging_->fetch(plain(copies))}; }
    void put(const Copies& copies) { staging_->put(plain(copies)); }
    void reuse() { staging_->reuse(); }
    void end(std::uint64_t stream) { staging_->end(stream_of(stream)); }
    bool is_free() const { return staging_->is_free(); }
    cuda::Staging& staging() const { return *staging_; }

  private:
    static std::vector<cuda::Staging::Copy> plain(const Copies& copies) {
        std::vector<cuda::Staging::Copy> found;
        for (const auto& [offset, address, bytes] : copies) found.push_back({offset, address, bytes});
        return found;
    }

    nb::object array_;
    std::unique_ptr<cuda::Staging> staging_;
};

// (staging, its memory, address on the device, stream, whether it may be read, and written)
using PassingArray = std::tuple<nb::object, nb::object, std::uint64_t, std::uint64_t, bool, bool>;

void make_transfer(PyTransfer* self, const std::vector<PassingArray>& arrays, bool ordered, bool early) {
    std::vector<cuda::ArrayTransfer::Array> found;
    std::vector<nb::object> keeps;
    for (const auto& [staging, host, address, stream, read, written] : arrays) {
        const std::size_t bytes = nb::cast<std::size_t>(host.attr("nbytes"));
        found.push_back({.staging = &nb::cast<const CudaStaging&>(staging).staging(),
                         .memory = memory(host, bytes, nb::cast<std::size_t>(host.attr("itemsize")), "host"),
                         .on_device = address,
                         .bytes = bytes,
                         .stream = stream_of(stream),
                         .read = read,
                         .written = written});
        keeps.push_back(staging);
        keeps.push_back(host);
    }
    new (self) PyTransfer(found, ordered, early, std::move(keeps));
}

}  // namespace

void add_leader(nb::module_& module) {
    module.attr("LEADER_MOST_RANKS") = cuda::most_ranks;
    module.def("can_access_cuda_peer", &cuda::can_access_peer, "device"_a, "other"_a);
    module.def("cuda_heap_bytes", &cuda::heap_bytes, "device"_a);
    nb::class_<CudaMemory>(module, "CudaMemory")
        .def(nb::init<std::size_t, int>(), "nbytes"_a, "device"_a)
        .def_prop_ro("address", &CudaMemory::address);
    nb::class_<StagedCopy>(module, "StagedCopy").def("wait", &StagedCopy::wait, "timeout"_a);
    nb::class_<CudaStaging>(module, "CudaStaging")
        .def(nb::init<nb::handle, std::size_t, int>(), "memory"_a, "nbytes"_a, "device"_a)
        .def("begin", &CudaStaging::begin, "stream"_a)
        .def("fetch", &CudaStaging::fetch, "copies"_a)
        .def("put", &CudaStaging::put, "copies"_a)
        .def("reuse", &CudaStaging::reuse)
        .def("end", &CudaStaging::end, "stream"_a)
        .def_prop_ro("is_free", &CudaStaging::is_free);
    nb::class_<PyTransfer>(module, "CudaTransfer")
        .def("__init__", &make_transfer, "arrays"_a, "ordered"_a, "early"_a)
        .def("finish", &PyTransfer::finish);
    nb::class_<LeaderCall>(module, "LeaderCall");
    nb::class_<LeaderMember>(module, "LeaderMember")
        .def(nb::init<nb::handle, int, const std::string&>(), "group"_a, "device"_a, "compiler"_a)
        .def_prop_ro("record", &LeaderMember::record)
        .def("meet", &LeaderMember::meet, "records"_a, "timeout"_a)
        .def("use", &LeaderMember::use)
        .def_prop_ro("memory", &LeaderMember::memory)
        .def("prepare", &LeaderMember::prepare, "operation"_a, "kind"_a, "inp"_a, "out"_a, "count"_a,
             "dtype"_a, "unit"_a, "op"_a, "root"_a, "stream"_a, "producer"_a.none())
        .def("issue", &LeaderMember::issue, "call"_a, "timeout"_a)
        .def("mark", &LeaderMember::mark, "stream"_a)
        .def("compile", &LeaderMember::compile, "dtype"_a, "op"_a);
}

}  // namespace collectives
